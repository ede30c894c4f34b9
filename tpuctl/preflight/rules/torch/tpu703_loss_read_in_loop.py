"""TPU703 loss-read-in-loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.control_flow import names_in
from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.torch.loops import training_loops
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import TORCH_STEP

RULE = Rule(
    code="TPU703",
    name="loss-read-in-loop",
    severity=Severity.cost,
    summary="Training loop for PyTorch/XLA reads the loss in each iteration",
    rationale=(
        "To read a value, `.item()`, `.cpu()`, `float`, and `print` run what is recorded so far, "
        "copy the result from the TPU, and wait for it, so that the TPU waits for Python in each "
        "step. Before `torch_xla.sync()`, they also split the step into two programs."
    ),
    bad=TORCH_STEP
    + """\
    print(step, loss.item())
    torch_xla.sync()
""",
    good=TORCH_STEP
    + """\
    torch_xla.sync()
    if step % 100 == 0:
        print(step, loss.item())
""",
)

METHODS = {"item", "cpu", "tolist"}
BUILTINS = {"float", "int", "print"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    for loop in training_loops(project):
        for call in loop.calls if loop.loss else ():
            method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            builtin = call.func.id if isinstance(call.func, ast.Name) else ""
            reads = method in METHODS and _root_name(call.func) == loop.loss
            if builtin in BUILTINS:
                reads = any(_is_loss(value, loop.loss) for value in call.args)
            if reads:
                message = f"{quoted(loop.module, call)} waits for the TPU in each iteration"
                hint = "Read it in some of the iterations, or with xm.add_step_closure."
                yield finding_at(RULE, loop.module, call, message, hint)


def _root_name(node: ast.expr) -> str:
    """The name that an expression such as `loss.detach().cpu` starts with."""
    while isinstance(node, (ast.Attribute, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_loss(node: ast.expr, loss: str) -> bool:
    """Whether a value is the loss, or a text with it."""
    if isinstance(node, ast.JoinedStr):
        parts = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
        return any(isinstance(part, ast.Name) and part.id == loss for part in parts)
    return isinstance(node, ast.Name) and loss in names_in(node)
