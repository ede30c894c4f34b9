"""TPU704 dynamic-shape."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.torch.loops import nodes_in, step_scopes
from tpuctl.preflight.analysis.torch.tensors import Tensors
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import TORCH_LOOP

RULE = Rule(
    code="TPU704",
    name="dynamic-shape",
    severity=Severity.cost,
    summary="Step for PyTorch/XLA computes a tensor whose size depends on values",
    rationale=(
        "How many elements `x[mask]`, `torch.nonzero`, or `torch.unique` return depends on values. "
        "PyTorch/XLA runs what is recorded so far to learn the size, and compiles the rest of the "
        "step again for each size."
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
METHODS = {name.removeprefix("torch.") for name in FUNCTIONS}
MASKS = {"bool", "eq", "ne", "gt", "ge", "lt", "le", "logical_and", "logical_or", "logical_not"}
MASKS |= {"isnan", "isfinite", "isinf"}
MASK = re.compile(r"(?:^|_)mask(?:s|ed)?$")  # names of tensors of Booleans
HINT = "Keep the full size, and give the other elements weight 0."


def find(project: Project, target: Target) -> Iterator[Finding]:
    sizes = _Sizes(project)
    for module, scope in step_scopes(project):
        is_step = isinstance(scope, ast.FunctionDef)  # whose branches decide little
        for node in ast.walk(scope) if is_step else nodes_in(module, scope):
            if sizes.depend_on_values(module, node, is_step):
                message = f"the size of {quoted(module, node)} depends on values"
                yield finding_at(RULE, module, node, message, HINT)


class _Sizes:
    """The sizes of results in steps."""

    def __init__(self, project: Project) -> None:
        self.tensors, self.host = Tensors.of(project), HostCode.of(project)

    def depend_on_values(self, module: Module, node: ast.AST, is_step: bool) -> bool:
        if isinstance(node, ast.Subscript):  # assigned ones, too
            index = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
            is_tensor = self.tensors.holds(module, node.value) or self.tensors.holds(module, index)
            return (is_step or is_tensor) and self._is_mask(module, index)
        if not isinstance(node, ast.Call):
            return False
        name = module.names.of(node.func)
        if name == "torch.where":
            return len(node.args) + len(node.keywords) == 1
        if name is None and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            is_own = node.func.attr == "masked_select"
            return is_own or is_step or self.tensors.holds(module, node.func.value)
        return name in FUNCTIONS

    def _is_mask(self, module: Module, node: ast.expr) -> bool:
        """Whether an index is a tensor of Booleans."""
        if isinstance(node, ast.Compare):
            is_order = not isinstance(node.ops[0], (ast.Is, ast.IsNot, ast.In, ast.NotIn))
            return is_order and len(node.ops) == 1
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, ast.Invert)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr)):
            return self._is_mask(module, node.left)
        if isinstance(node, ast.Call):
            name = module.names.of(node.func) or str(getattr(node.func, "attr", ""))
            return name.removeprefix("torch.") in MASKS
        values = self.host.assigned_values(module, node) if isinstance(node, ast.Name) else []
        if isinstance(node, ast.Name) and None in (*values, *([] if values else [None])):
            return bool(MASK.search(node.id))  # a parameter, or a part of a batch
        return bool(values) and all(
            value is not None and not isinstance(value, ast.Name) and self._is_mask(module, value)
            for value in values
        )
