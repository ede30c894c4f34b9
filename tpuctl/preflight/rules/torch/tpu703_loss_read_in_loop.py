"""TPU703 loss-read-in-loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import elements_of
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.torch.loops import nodes_in, step_scopes
from tpuctl.preflight.analysis.torch.tensors import Tensors
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import TORCH_STEP

RULE = Rule(
    code="TPU703",
    name="loss-read-in-loop",
    severity=Severity.cost,
    summary="Training loop for PyTorch/XLA reads a tensor in each iteration",
    rationale=(
        "To read a value, `.item()`, `.cpu()`, `float`, `print`, and conditions such as "
        "`if loss < best` run what is recorded so far, copy the result from the TPU, and wait for "
        "it, so that the TPU waits for Python in each step. Before `torch_xla.sync()`, they also "
        "split the step into two programs."
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

METHODS = {"item", "cpu", "tolist", "numpy"}
BUILTINS = {"float", "int", "bool", "print", "str", "min", "max"}
READERS = ("math.", "numpy.", "torch.equal", "torch.allclose", "wandb.log")
WRITERS = {"add_scalar", "set_postfix", "log_metric"}  # of TensorBoard, tqdm, and trackers
# Options of trainers, which read the loss to log it.
INTERVALS = {"logging_steps": "transformers.", "log_every_n_steps": "lightning"}
HINT = "Read it in some of the iterations, or with xm.add_step_closure."


def find(project: Project, target: Target) -> Iterator[Finding]:
    tensors = Tensors.of(project)
    for module, scope in step_scopes(project):
        for node in nodes_in(module, scope, tensors.host):
            if _reads(tensors, module, node):
                message = f"{quoted(module, node)} waits for the TPU in each iteration"
                yield finding_at(RULE, module, node, message, HINT)
    for module in project:
        for call in module.calls:
            for keyword in call.keywords:
                package = INTERVALS.get(keyword.arg or "")
                name = (module.names.of(call.func) or "").removeprefix("pytorch_")
                is_one = getattr(keyword.value, "value", None) == 1
                if package is not None and name.startswith(package) and is_one:
                    message = f"`{keyword.arg}=1` waits for the TPU in each iteration"
                    yield finding_at(RULE, module, keyword, message, f"Set {keyword.arg} to 50.")


def _reads(tensors: Tensors, module: Module, node: ast.AST) -> bool:
    """Whether an expression or statement itself needs the values of a tensor."""
    match node:
        case ast.Call():
            return _call_reads(tensors, module, node) or _is_truth_read(tensors, module, node)
        case ast.Compare() | ast.Attribute() | ast.Name():
            return _is_truth_read(tensors, module, node)
        case ast.JoinedStr(values=parts):
            return any(tensors.holds(module, getattr(part, "value", None)) for part in parts)
    return False


def _is_truth_read(tensors: Tensors, module: Module, node: ast.AST) -> bool:
    """Whether a condition asks whether a tensor is true."""
    parent = module.parents.get(node)
    is_part = isinstance(parent, ast.BoolOp) or (
        isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not)
    )
    if isinstance(parent, (ast.If, ast.While, ast.IfExp, ast.Assert)):
        is_part = parent.test is node
    return is_part and tensors.holds(module, node)


def _call_reads(tensors: Tensors, module: Module, call: ast.Call) -> bool:
    name, function = module.names.of(call.func), call.func
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    values += [part for value in call.args for part in elements_of(value) if part is not value]
    if isinstance(function, ast.Attribute) and name is None:
        if function.attr in METHODS:
            return tensors.holds(module, function.value)
        if function.attr == "to" and any(getattr(part, "value", "") == "cpu" for part in values):
            return tensors.holds(module, function.value)
        is_format = function.attr == "format" and isinstance(function.value, ast.Constant)
        if not is_format and function.attr not in WRITERS:
            return False
    elif isinstance(function, ast.Name) and name is None:
        if function.id not in BUILTINS:
            return False
    elif name is None or not name.startswith(READERS):
        return False
    return any(tensors.holds(module, value) for value in values)
