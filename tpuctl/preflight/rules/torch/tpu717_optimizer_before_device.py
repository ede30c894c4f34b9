"""TPU717 optimizer-before-device."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.control_flow import is_in_branch, loop_around
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument, dotted
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.torch.tensors import XLA_DEVICES
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

BEGIN = """\
import torch
import torch_xla

device = torch_xla.device()
model = torch.nn.Linear(8, 1)
"""
MOVE = "model = model.to(device)\n"
OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"

RULE = Rule(
    code="TPU717",
    name="optimizer-before-device",
    severity=Severity.risk,
    summary="PyTorch's optimizer is created before its model moves to the TPU",
    rationale=(
        "A move from the CPU to an XLA device gives a model new parameters. An optimizer that was "
        "created before has the old ones, which stay on the CPU and get no gradients: its steps "
        "change nothing, without an error."
    ),
    bad=BEGIN + OPTIMIZER + MOVE,
    good=BEGIN + MOVE + OPTIMIZER,
)


def find(project: Project, target: Target) -> Iterator[Finding]:
    host = HostCode.of(project)
    for module in project:
        moves = [call for call in module.calls if _moves(host, module, call)]
        created = [
            (call, model)
            for call in module.calls
            if (module.names.of(call.func) or "").startswith("torch.optim.")
            for model in _models(call)
        ]
        for call, model in created:
            around = module.enclosing_function(call)
            if is_in_branch(module, call, None) or loop_around(module, call) is not None:
                continue
            of_model = [
                move
                for move in moves
                if module.enclosing_function(move) is around and _owner(move) == model
            ]
            others = [
                other.lineno
                for other, its in created
                if its == model and module.enclosing_function(other) is around
            ]
            if of_model and call.lineno < min(move.lineno for move in of_model) > max(others):
                message = f"{quoted(module, call.func)} gets the parameters of `{model}` on the CPU"
                hint = f"Create it after `{model}` is on the device."
                yield finding_at(RULE, module, call, message, hint)


def _moves(host: HostCode, module: Module, call: ast.Call) -> bool:
    """Whether a call certainly moves something to an XLA device."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "to":
        return False
    device = argument(call, 0, "device")
    values = [] if device is None else [device, *host.assigned_values(module, device)]
    names = [module.names.called(value) for value in values if value is not None]
    is_xla = any(name in XLA_DEVICES for name in names)
    return is_xla and not is_in_branch(module, call, None) and not loop_around(module, call)


def _owner(move: ast.Call) -> str | None:
    assert isinstance(move.func, ast.Attribute)
    return dotted(move.func.value)


def _models(call: ast.Call) -> list[str]:
    """The models whose parameters an optimizer gets."""
    parameters = argument(call, 0, "params")
    return [
        name
        for part in (ast.walk(parameters) if parameters is not None else ())
        if isinstance(part, ast.Attribute) and part.attr in ("parameters", "named_parameters")
        if (name := dotted(part.value)) is not None
    ]
