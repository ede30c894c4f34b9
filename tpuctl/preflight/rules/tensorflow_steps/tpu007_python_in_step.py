"""TPU007 python-in-step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.scope_definitions import Definitions
from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tracing.inference import Inference, infer
from tpuctl.preflight.analysis.tracing.traced import Traced
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU007",
    name="python-in-step",
    severity=Severity.risk,
    summary="Python in a step runs once, when it is traced",
    rationale=(
        "Python runs while a step is traced, not when it is executed. So `time.time()` and "
        "`random.random()` give the same number in each step, a counter is increased once, "
        "`print` shows no values, and a list that outlives the step receives symbols that are of "
        "no use outside of it."
    ),
    bad="""\
import random

import tensorflow as tf


@tf.function
def step(x):
    return x * random.random()


for _ in range(100):
    step(tf.ones([8]))
""",
    good="""\
import tensorflow as tf


@tf.function
def step(x):
    return x * tf.random.uniform([])


for _ in range(100):
    step(tf.ones([8]))
""",
)

CLOCKS = {"time.time", "time.perf_counter", "time.monotonic", "time.process_time", "time.time_ns"}
CLOCKS |= {"datetime.datetime.now", "datetime.datetime.utcnow", "datetime.now"}
RANDOM = ("random.", "numpy.random.")
NOT_RANDOM = {"seed", "set_state", "setstate", "getstate", "get_state", "Random", "RandomState"}
NOT_RANDOM |= {"default_rng", "Generator", "SeedSequence", "PRNGKey"}
LIST_METHODS = {"append", "extend", "insert", "add"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    inference = infer(project, target)
    for traced, node in inference.sites:
        if not traced.is_reached:
            continue
        if isinstance(node, ast.Call):
            yield from _called(inference, traced, node)
        elif isinstance(node, ast.AugAssign):
            yield from _counted(inference, traced, node)


def _called(inference: Inference, traced: Traced, node: ast.Call) -> Iterator[Finding]:
    name = traced.module.names.of(node.func) or ""
    text = quoted(traced.module, node)
    if name in CLOCKS:
        hint = "Measure the time on the host, around the step."
        yield finding_at(RULE, traced, node, f"{text} is the time when the step was traced", hint)
    elif name.startswith(RANDOM) and name.rpartition(".")[2] not in NOT_RANDOM:
        message = f"{text} is the same number in each step"
        yield finding_at(RULE, traced, node, message, "Use tf.random.")
    elif isinstance(node.func, ast.Name) and node.func.id == "print" and not name:
        if any(inference.of(value).is_computed for value in _shown(node)):
            message = f"{text} shows a symbol, once, instead of the value in each step"
            hint = "Return the value from the step, and print it on the host now and then."
            yield finding_at(RULE, traced, node, message, hint)
    elif isinstance(node.func, ast.Attribute) and node.func.attr in LIST_METHODS and not name:
        is_computed = any(inference.of(value).is_computed for value in node.args)
        if is_computed and _outlives(inference, traced, node.func.value):
            message = f"{text} adds a symbol of the step to what outlives it"
            hint = "Return it from the step, and keep what the step returned."
            yield finding_at(RULE, traced, node, message, hint)


def _shown(node: ast.Call) -> Iterator[ast.expr]:
    """The values that a call of `print` shows as they are."""
    for value in node.args:
        yield value
        for part in value.values if isinstance(value, ast.JoinedStr) else ():
            if isinstance(part, ast.FormattedValue) and part.format_spec is None:
                yield part.value


def _counted(inference: Inference, traced: Traced, node: ast.AugAssign) -> Iterator[Finding]:
    """Report a counter that is a Python number."""
    is_number = inference.host.evaluate(traced.module, node.value).is_number
    is_symbolic = inference.of(node.target).is_symbolic
    if is_number and not is_symbolic and _outlives(inference, traced, node.target):
        message = f"{quoted(traced.module, node)} counts how often the step is traced, not its runs"
        hint = "Count on the host, or in a tf.Variable with assign_add."
        yield finding_at(RULE, traced, node, message, hint)


def _outlives(inference: Inference, traced: Traced, node: ast.expr) -> bool:
    """Whether a name or attribute is of code that is not traced."""
    if isinstance(node, ast.Attribute):
        return _is_attribute(traced, node)
    key = Definitions.of(inference.project).key_of(traced.module, node)
    return key is not None and key[0] not in inference.contexts


def _is_attribute(traced: Traced, node: ast.Attribute) -> bool:
    """Whether it is an attribute of `self` that the function does not set itself, in a step."""
    if getattr(node.value, "id", "") != "self":
        return False
    sets_it = any(
        isinstance(part, ast.Assign)
        and any(ast.unparse(target) == ast.unparse(node) for target in part.targets)
        for part in traced.module.own_nodes(traced.node)
    )
    is_step = getattr(traced.node, "name", "") not in ("call", "__call__", "build")
    return is_step and traced.is_root and not sets_it
