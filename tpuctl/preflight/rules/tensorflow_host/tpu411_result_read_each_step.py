"""TPU411 result-read-each-step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tensorflow.training_loops import StepCall, step_calls
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import TRAINING_LOOP

RULE = Rule(
    code="TPU411",
    name="result-read-each-step",
    severity=Severity.cost,
    summary="Custom training loop reads a result of each step",
    rationale=(
        "A step is started without waiting for it, so that Python prepares the next one while the "
        "TPU computes. `loss.numpy()`, `float(loss)` and `print(loss)` wait for the step, and the "
        "TPU then waits for Python. Results that are read every hundred steps cost nothing."
    ),
    bad=TRAINING_LOOP
    + """\
    print(float(loss))
""",
    good=TRAINING_LOOP
    + """\
    if number % 100 == 0:
        print(float(loss))
""",
)

READERS = {"float", "int", "print", "round"}
CLOCKS = ("time.", "timeit.")  # a loop that measures steps has to wait for them
DESCRIPTIONS = {"shape", "dtype", "name", "device"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    lines: set[tuple[Module, int]] = set()
    for step in step_calls(project):
        nodes = list(ast.walk(step.loop))
        if any((step.module.names.called(part) or "").startswith(CLOCKS) for part in nodes):
            continue
        for node in nodes:
            if not isinstance(node, ast.Call) or not _reads(step, node) or not step.repeats(node):
                continue
            if (step.module, node.lineno) not in lines:
                lines.add((step.module, node.lineno))
                message = f"{quoted(step.module, node)} waits for the step, in each iteration"
                hint = "Read it after some of the steps, such as `if step % 100 == 0:`."
                yield finding_at(RULE, step.module, node, message, hint)


def _reads(step: StepCall, node: ast.Call) -> bool:
    """Whether a call needs the value of what a step computed."""
    if isinstance(node.func, ast.Attribute) and node.func.attr == "numpy":
        return _is_result(step, node.func.value)
    if getattr(node.func, "id", "") not in READERS:
        return False
    return any(_is_result(step, part) for value in node.args for part in ast.walk(value))


def _is_result(step: StepCall, node: ast.AST) -> bool:
    """Whether an expression is a result of a step, or of a metric that it may have updated."""
    parent = step.module.parents.get(node)
    if isinstance(parent, ast.Attribute) and parent.attr in DESCRIPTIONS:
        return False
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        return node.id in step.results
    is_metric = isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "result"
    return is_metric or node is step.call
