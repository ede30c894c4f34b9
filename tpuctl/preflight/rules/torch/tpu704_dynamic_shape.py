"""TPU704 dynamic-shape."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.functions import class_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.torch.loops import training_loops
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import TORCH_LOOP

RULE = Rule(
    code="TPU704",
    name="dynamic-shape",
    severity=Severity.cost,
    summary="Step for PyTorch/XLA computes a tensor whose size depends on values",
    rationale=(
        "How many elements `torch.nonzero`, `torch.masked_select`, or `torch.unique` return "
        "depends on values. PyTorch/XLA runs what is recorded so far to learn the size, and "
        "compiles the rest of the step again for each size."
    ),
    bad=TORCH_LOOP
    + """\
    errors = model(torch.randn(64, 8, device=device))
    loss = torch.masked_select(errors, errors > 0).mean()
    loss.backward()
    optimizer.step()
    torch_xla.sync()
""",
    good=TORCH_LOOP
    + """\
    errors = model(torch.randn(64, 8, device=device))
    weights = (errors > 0).float()
    loss = (errors * weights).sum() / weights.sum()
    loss.backward()
    optimizer.step()
    torch_xla.sync()
""",
)

FUNCTIONS = {"torch.nonzero", "torch.argwhere", "torch.masked_select", "torch.unique"}
FUNCTIONS |= {"torch.unique_consecutive"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    in_loops = {call for loop in training_loops(project) for call in loop.calls}
    for module in project:
        for call in module.calls:
            if _is_dynamic(module, call) and (
                call in in_loops or (in_loops and _is_in_forward(project, module, call))
            ):
                message = f"the size of {quoted(module, call)} depends on values"
                hint = "Keep the full size, and give the other elements weight 0."
                yield finding_at(RULE, module, call, message, hint)


def _is_dynamic(module: Module, call: ast.Call) -> bool:
    name = module.names.of(call.func)
    if name == "torch.where":
        return len(call.args) + len(call.keywords) == 1
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr == "masked_select"
    return name in FUNCTIONS or (is_method and name is None)


def _is_in_forward(project: Project, module: Module, node: ast.AST) -> bool:
    """Whether a node is in the `forward` of a module of PyTorch."""
    function, owner = module.enclosing_function(node), module.enclosing_class(node)
    if getattr(function, "name", "") != "forward" or owner is None:
        return False
    names = {module.names.of(base) for base in owner.bases}
    bases = (class_of(project, module, base) for base in owner.bases)
    return "torch.nn.Module" in names or any(base is not None for base in bases)
