"""TPU415 tpu-initialized-again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.callers import calls_of
from tpuctl.preflight.analysis.program.control_flow import LOOPS, is_in_branch
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tensorflow.strategy_scopes import tpu_strategies
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import CONNECT

STEP = """
with strategy.scope():
    weights = tf.Variable(tf.zeros([8]))


@tf.function
def step():
    strategy.run(lambda: weights.assign_add(tf.ones([8])))


"""

RULE = Rule(
    code="TPU415",
    name="tpu-initialized-again",
    severity=Severity.error,
    summary="TPU is initialized again while a strategy has variables on it",
    rationale=(
        "`tf.tpu.experimental.initialize_tpu_system` clears the memory of the TPU and its compiled "
        "programs: the variables of an existing strategy are lost, and the next step that uses "
        "them fails. It is called once, before the strategy is created. After a reset, create the "
        "strategy, the model and the optimizer again, and restore a checkpoint."
    ),
    bad=CONNECT
    + STEP
    + """\
for epoch in range(10):
    tf.tpu.experimental.initialize_tpu_system(resolver)
    step()
""",
    good=CONNECT
    + STEP
    + """\
for epoch in range(10):
    step()
""",
)

MAX_CALLS = 3  # functions between a call and where the strategy is created
INITIALIZE = ("initialize_tpu_system", "TPUClusterResolver.connect")


def find(project: Project, target: Target) -> Iterator[Finding]:
    strategies = tpu_strategies(project)
    for module in project if strategies else ():
        created = [call for where, call in strategies if where is module]
        for call in module.calls:
            name = module.names.of(call.func) or ""
            if not name.endswith(INITIALIZE):
                continue
            places = [call, *_calls_around(project, module, call)]
            if any(_is_recovery(module, place, created) for place in places):
                continue
            if not any(_runs_after(project, module, call, each, MAX_CALLS) for each in created):
                continue
            message = (
                f"{quoted(module, call.func)} clears the TPU on which a strategy has variables"
            )
            is_sure = not any(is_in_branch(module, place, None) for place in places)
            severity = None if is_sure else Severity.risk
            hint = "Initialize it once, before the strategy is created."
            yield finding_at(RULE, module, call, message, hint, severity=severity)


def _calls_around(project: Project, module: Module, node: ast.AST) -> list[ast.Call]:
    """The calls of the function around a node, if all of them are known and in its file."""
    function = module.enclosing_function(node)
    if function is None:
        return []
    calls, is_complete = calls_of(project, module, function)
    is_known = is_complete and all(where is module for where, _ in calls)
    return [call for _, call in calls] if is_known else []


def _runs_after(
    project: Project, module: Module, node: ast.Call, strategy: ast.Call, depth: int
) -> bool:
    """Whether a call certainly runs after one that creates a strategy."""
    function = module.enclosing_function(node)
    if function is module.enclosing_function(strategy):
        return node.lineno > strategy.lineno and not _are_alternatives(module, node, strategy)
    calls = _calls_around(project, module, node) if depth else []
    return bool(calls) and all(
        _runs_after(project, module, call, strategy, depth - 1) for call in calls
    )


def _are_alternatives(module: Module, node: ast.AST, other: ast.AST) -> bool:
    """Whether only one of two nodes runs, by a conditional around both."""
    around = [node, *module.ancestors(node)], [other, *module.ancestors(other)]
    for conditional in (part for part in around[0] if isinstance(part, ast.If)):
        if conditional in around[1]:
            branches = [any(part in conditional.body for part in parts) for parts in around]
            return branches[0] != branches[1]
    return False


def _is_recovery(module: Module, node: ast.Call, created: list[ast.Call]) -> bool:
    """Whether an exception is handled, or a strategy is created after a call, or in its loop."""
    around = list(module.ancestors(node))
    if any(isinstance(part, ast.ExceptHandler) for part in around):
        return True
    loops = [part for part in around if isinstance(part, LOOPS)]
    return any(
        module.enclosing_function(strategy) is module.enclosing_function(node)
        and (
            strategy.lineno >= node.lineno
            or any(part in loops for part in module.ancestors(strategy))
        )
        for strategy in created
    )
