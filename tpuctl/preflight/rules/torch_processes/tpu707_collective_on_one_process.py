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
    is_collective,
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
        "part in the next collective of the others, with other values. `xm.save` chooses the "
        "process that writes itself. Older versions then wait for all processes; newer ones "
        "compute what the tensors still wait for, collectives included, in those that call it."
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

# Each process calls them, and they let one of them write.
SAVES = {f"{XM}save", "torch_xla.utils.serialization.save"}
HINT = "Call it in all processes, and use its result in one."


def find(project: Project, target: Target) -> Iterator[Finding]:
    host = HostCode.of(project)
    for module in project:
        for call in module.calls:
            is_save = module.names.of(call.func) in SAVES
            if not (is_save or is_collective(host, module, call)):
                continue
            if not _is_on_one(host, module, call):
                continue
            message = f"{quoted(module, call)} waits for processes that do not call it"
            hint = HINT
            if is_save:
                message = f"{quoted(module, call)} is for all processes, and one alone calls it"
                hint = "Call it in all processes: it writes in the first of a machine alone."
            yield finding_at(RULE, module, call, message, hint)


def _is_on_one(host: HostCode, module: Module, node: ast.AST) -> bool:
    """Whether conditions around a node, or before it, hold in one process only."""
    below = node
    for ancestor in module.ancestors(node):
        body = _body(ancestor)
        test = ancestor.test if isinstance(ancestor, ast.If) else None
        if test is not None and below in body and is_first(host, module, test):
            return not _others_call(module, node, ancestor)
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


def _others_call(module: Module, node: ast.AST, conditional: ast.AST) -> bool:
    """Whether the other processes call the same function in the other branch."""
    called = module.names.called(node)
    others = [part for other in getattr(conditional, "orelse", []) for part in ast.walk(other)]
    return called is not None and called in map(module.names.called, others)


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
