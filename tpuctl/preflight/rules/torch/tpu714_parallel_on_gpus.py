"""TPU714 parallel-on-gpus."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.control_flow import is_in_branch
from tpuctl.preflight.analysis.program.library_names import uses
from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.program.syntax import argument
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.torch.usage import uses_xla_device
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

SCRIPT = """\
import torch
import torch_xla

model = torch.nn.Linear(8, 1).to(torch_xla.device())
"""

RULE = Rule(
    code="TPU714",
    name="parallel-on-gpus",
    severity=Severity.risk,
    summary="Script for PyTorch/XLA distributes its model in a way for GPUs",
    rationale=(
        "`torch.nn.DataParallel` copies a model to all GPUs, and to no chip of a TPU: one chip "
        "trains. `DistributedDataParallel` with `device_ids`, and process groups with the gloo "
        "backend, do not accept tensors of XLA devices. PyTorch/XLA starts a process for each chip "
        "with `torch_xla.launch`, and has a backend called xla."
    ),
    bad=SCRIPT
    + """\
model = torch.nn.DataParallel(model)
""",
    good=SCRIPT,
)

PARALLEL = {"torch.nn.DataParallel", "torch.nn.parallel.DataParallel"}
DISTRIBUTED = "torch.nn.parallel.DistributedDataParallel"

# What exchanges tensors by the backend of a process group; SPMD does not.
EXCHANGES = re.compile(rf"{re.escape(DISTRIBUTED)}|torch\.distributed\.(?:all_reduce|all_gather)")
SPMD = re.compile(r"torch_xla\.(?:.*\.)?(?:use_spmd|mark_sharding|Mesh)")
PROCESS_GROUP = "torch.distributed.init_process_group"


def find(project: Project, target: Target) -> Iterator[Finding]:
    exchanges = uses(project, EXCHANGES) and not uses(project, SPMD)
    for module in project if uses_xla_device(project) else ():
        for call in module.calls:
            name = module.names.of(call.func) or ""
            message, hint = "", "Start a process for each chip: torch_xla.launch(train)."
            if name in PARALLEL:
                message = f"{quoted(module, call)} uses one chip"
            elif name == DISTRIBUTED and isinstance(argument(call, 1, "device_ids"), ast.List):
                message = f"{quoted(module, call)} does not accept XLA devices"
                hint = "Leave out device_ids."
            elif (
                name == PROCESS_GROUP
                and exchanges
                and _text(argument(call, 0, "backend")) == "gloo"
            ):
                message = f"{quoted(module, call)} does not exchange tensors of XLA devices"
                hint = 'Import torch_xla.distributed.xla_backend, and use the backend "xla".'
            if message and not is_in_branch(module, call, None):
                yield finding_at(RULE, module, call, message, hint)


def _text(node: ast.expr | None) -> str:
    return str(getattr(node, "value", ""))
