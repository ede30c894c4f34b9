"""TPU716 changing-slice."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.loops import counters_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.torch.loops import nodes_in, training_loops
from tpuctl.preflight.analysis.torch.tensors import FACTORIES, Tensors
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import TORCH_LOOP

SCRIPT = "import random\n\n" + TORCH_LOOP

RULE = Rule(
    code="TPU716",
    name="changing-slice",
    severity=Severity.cost,
    summary="Training loop for PyTorch/XLA slices tensors at another position in each step",
    rationale=(
        "XLA compiles a program for fixed positions and sizes. `x[:, :length]`, `x[step]`, or "
        "`torch.zeros(length)`, whose numbers differ from step to step, compile the whole step "
        "again for each. Batches that are sliced on the host, an index in a tensor, or weights of "
        "the full size need one program."
    ),
    bad=SCRIPT
    + """\
    length = random.randint(1, 64)
    errors = model(torch.ones(64, 8, device=device)[:length])
    loss = errors.square().mean()
    loss.backward()
    optimizer.step()
    torch_xla.sync()
""",
    good=SCRIPT
    + """\
    length = torch.tensor(random.randint(1, 64)).to(device)
    weights = (torch.arange(64, device=device) < length).float()
    errors = model(torch.ones(64, 8, device=device)).square().mean(1)
    loss = (errors * weights).sum() / weights.sum()
    loss.backward()
    optimizer.step()
    torch_xla.sync()
""",
)

SIZED = FACTORIES - {"full", "tensor", "arange", "randint"}  # by their positional arguments
DRAWS = {"random.randint", "random.randrange", "numpy.random.randint"}
HINT = "Slice before the move to the device, index with a tensor, or use weights."


def find(project: Project, target: Target) -> Iterator[Finding]:
    tensors = Tensors.of(project)
    for loop in training_loops(project):
        module, counters = loop.module, counters_of(loop.module, loop.loop)
        for node in nodes_in(module, loop.loop):
            sizes = _sizes(tensors, module, node)
            if any(_changes(tensors, module, size, counters) for size in sizes):
                message = (
                    f"{quoted(module, node)} compiles the step again for each position or size"
                )
                yield finding_at(RULE, module, node, message, HINT)


def _sizes(tensors: Tensors, module: Module, node: ast.AST) -> list[ast.expr]:
    """The expressions that decide the size of a tensor on the device."""
    if isinstance(node, ast.Subscript) and tensors.holds(module, node.value):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        bounds = [
            bound
            for part in parts
            for bound in ((part.lower, part.upper) if isinstance(part, ast.Slice) else (part,))
        ]
        return [bound for bound in bounds if bound is not None]
    if isinstance(node, ast.Call) and tensors.holds(module, node):
        name = module.names.of(node.func) or ""
        if name.startswith("torch.") and name.rpartition(".")[2] in SIZED:
            return list(node.args)
    return []


def _changes(
    tensors: Tensors, module: Module, node: ast.expr, counters: set[str], depth: int = 3
) -> bool:
    """Whether an expression is a number that certainly differs from step to step."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
        return any(
            _changes(tensors, module, part, counters, depth) for part in (node.left, node.right)
        )
    if isinstance(node, ast.Name):
        if node.id in counters:
            return True
        values = tensors.host.assigned_values(module, node)
        value = values[0] if len(values) == 1 else None
        return (
            depth > 0
            and value is not None
            and (_changes(tensors, module, value, counters, depth - 1))
        )
    if not isinstance(node, ast.Call):
        return False
    if module.names.of(node.func) in DRAWS:
        return True
    # A number that is read from a tensor.
    if isinstance(node.func, ast.Attribute) and node.func.attr == "item":
        return tensors.holds(module, node.func.value)
    is_int = getattr(node.func, "id", "") == "int" and len(node.args) == 1
    return is_int and tensors.holds(module, node.args[0])
