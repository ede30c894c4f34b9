"""TPU707 collective-on-one-process."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import FUNCTIONS
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.torch.processes import (
    XM,
    compares_ordinal,
    is_accelerator,
    is_first,
)
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

SCRIPT = """\
import torch
import torch_xla
import torch_xla.core.xla_model as xm


def evaluate(index):
    score = torch.ones((), device=torch_xla.device())
"""
MAIN = """

if __name__ == "__main__":
    torch_xla.launch(evaluate)
"""

RULE = Rule(
    code="TPU707",
    name="collective-on-one-process",
    severity=Severity.risk,
    summary="One process of several calls a function in which all processes meet",
    rationale=(
        "A collective such as `xm.all_reduce`, and a barrier such as `xm.rendezvous`, waits until "
        "every process has called it. If only the first process does, it waits forever, or takes "
        "part in the next collective of the others, with other values."
    ),
    bad=SCRIPT
    + """\
    if xm.is_master_ordinal(local=False):
        score = xm.all_reduce(xm.REDUCE_SUM, score)
        print(score.item())
"""
    + MAIN,
    good=SCRIPT
    + """\
    score = xm.all_reduce(xm.REDUCE_SUM, score)
    torch_xla.sync()
    if xm.is_master_ordinal(local=False):
        print(score.item())
"""
    + MAIN,
)

COLLECTIVES = {
    *(f"{XM}{name}" for name in ("all_reduce", "all_gather", "all_to_all", "reduce_scatter")),
    *(f"{XM}{name}" for name in ("collective_permute", "collective_broadcast", "rendezvous")),
    *(f"{XM}{name}" for name in ("mesh_reduce", "optimizer_step", "reduce_gradients")),
    f"{XM}broadcast_master_param",
    *(f"torch.distributed.{name}" for name in ("barrier", "all_reduce", "all_gather", "reduce")),
    *(f"torch.distributed.{name}" for name in ("broadcast", "gather", "all_gather_object")),
}
METHODS = {"wait_for_everyone", "gather", "gather_for_metrics", "reduce", "save_state"}
HINT = "Call it in all processes, and use its result in one."


def find(project: Project, target: Target) -> Iterator[Finding]:
    host = HostCode.of(project)
    for module in project:
        for call in module.calls:
            if _is_collective(host, module, call) and _is_on_one(host, module, call):
                message = f"{quoted(module, call)} waits for processes that do not call it"
                yield finding_at(RULE, module, call, message, HINT)


def _is_collective(host: HostCode, module: Module, call: ast.Call) -> bool:
    name = module.names.of(call.func)
    if name is not None or not isinstance(call.func, ast.Attribute):
        return name in COLLECTIVES
    return call.func.attr in METHODS and is_accelerator(host, module, call.func.value)


def _is_on_one(host: HostCode, module: Module, node: ast.AST) -> bool:
    """Whether conditions around a node, or before it, hold in one process only."""
    below = node
    for ancestor in module.ancestors(node):
        body = _body(ancestor)
        test = ancestor.test if isinstance(ancestor, ast.If) else None
        if test is not None and below in body and is_first(host, module, test):
            return True
        if below in body:
            before = body[: body.index(below)]
            if any(
                isinstance(part, ast.If) and _leaves_others(host, module, part) for part in before
            ):
                return True
        if isinstance(ancestor, FUNCTIONS):
            return False
        below = ancestor
    return False


def _body(node: ast.AST) -> list[ast.AST]:
    body = getattr(node, "body", [])
    return body if isinstance(body, list) else []


def _leaves_others(host: HostCode, module: Module, node: ast.If) -> bool:
    """Whether all processes but one return."""
    is_other = (
        isinstance(node.test, ast.UnaryOp)
        and isinstance(node.test.op, ast.Not)
        and is_first(host, module, node.test.operand)
    ) or compares_ordinal(host, module, node.test, ast.NotEq)
    return is_other and isinstance(node.body[-1], ast.Return)
