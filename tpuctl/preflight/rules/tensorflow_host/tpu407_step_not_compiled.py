"""TPU407 step-not-compiled."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.callers import calls_of
from tpuctl.preflight.analysis.program.control_flow import is_in_branch
from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import FUNCTIONS, argument
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tensorflow.strategy_scopes import RUNS, tpu_strategies
from tpuctl.preflight.analysis.tensorflow.training_loops import program_of
from tpuctl.preflight.analysis.tracing.traced import root_of
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import CONNECT

STEP = """

def replica_step(x):
    return tf.reduce_sum(x)


"""

RULE = Rule(
    code="TPU407",
    name="step-not-compiled",
    severity=Severity.error,
    summary="Step runs eagerly, which a TPUStrategy refuses",
    rationale=(
        "A TPUStrategy runs only compiled functions: `strategy.run` outside of a `tf.function` "
        'fails with "does not support pure eager execution", and so do '
        "`compile(run_eagerly=True)` and `tf.config.run_functions_eagerly(True)`, which turn "
        "`tf.function` off."
    ),
    bad=CONNECT
    + STEP
    + """\
def step(x):
    return strategy.run(replica_step, args=(x,))


print(step(tf.ones([8])))
""",
    good=CONNECT
    + STEP
    + """\
@tf.function
def step(x):
    return strategy.run(replica_step, args=(x,))


print(step(tf.ones([8])))
""",
)

SWITCHES = {
    "tensorflow.config.run_functions_eagerly",
    "tensorflow.config.experimental_run_functions_eagerly",
}
HINT = "Remove it, or set it only for debugging on a CPU."
MAX_DEPTH = 10


def find(project: Project, target: Target) -> Iterator[Finding]:
    """Yield what runs eagerly: a risk in a branch, which may be for debugging on a CPU."""
    for module in project if tpu_strategies(project) else ():
        for call in module.calls:
            for node, message, hint in _eager(HostCode.of(project), module, call):
                severity = Severity.risk if is_in_branch(module, call, None) else Severity.error
                yield finding_at(RULE, module, node, message, hint, severity=severity)


def _eager(host: HostCode, module: Module, call: ast.Call) -> Iterator[tuple[ast.AST, str, str]]:
    """The nodes of a call that make steps run eagerly, with messages and hints."""
    name = module.names.of(call.func)
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if name in SWITCHES and _is_true(argument(call, 0, "run_eagerly")):
        text = f"{quoted(module, call)} turns `tf.function` off, which a TPUStrategy needs"
        yield call, text, HINT
    elif method == "compile" and name is None:
        for keyword in call.keywords:
            if keyword.arg == "run_eagerly" and _is_true(keyword.value):
                yield keyword, "`run_eagerly=True` does not work with a TPUStrategy", HINT
    elif method in RUNS and name is None and _is_plain(host, module, call):
        text = f"{quoted(module, call.func)} runs outside of a `tf.function`"
        yield call, text, "Decorate the function that calls it with @tf.function."


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _is_plain(host: HostCode, module: Module, call: ast.Call) -> bool:
    """Whether a call certainly runs a Python function on a TPUStrategy, and not while tracing."""
    assert isinstance(call.func, ast.Attribute)
    function = argument(call, 0, "fn")
    if function is None or not host.evaluate(module, call.func.value).name.endswith("TPUStrategy"):
        return False
    if function_of(host.project, module, function) is None:
        return False
    is_program = program_of(host.project, module, function) is not None
    return not is_program and _is_eager(host.project, module, call, MAX_DEPTH)


def _is_eager(project: Project, module: Module, node: ast.AST, depth: int) -> bool:
    """Whether all code that reaches a node is known, and none of it is a `tf.function`."""
    around = [part for part in module.ancestors(node) if isinstance(part, FUNCTIONS)]
    if not around:
        return True
    if not depth or any(root_of(module, part) is not None for part in around):
        return False
    if getattr(around[0], "decorator_list", []):
        return False
    calls, is_complete = calls_of(project, module, around[0])
    return (
        bool(calls) and is_complete and all(_is_eager(project, *call, depth - 1) for call in calls)
    )
