"""TPU719 clipped-before-reduction."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.library_names import uses
from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.torch.loops import training_loops
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

SCRIPT = """\
import torch
import torch_xla
import torch_xla.core.xla_model as xm


def train(index):
    device = torch_xla.device()
    model = torch.nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1000):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8, device=device)).square().mean()
        loss.backward()
UPDATE
        torch_xla.sync()


if __name__ == "__main__":
    torch_xla.launch(train)
"""
CLIP = "        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"

RULE = Rule(
    code="TPU719",
    name="clipped-before-reduction",
    severity=Severity.risk,
    summary="Processes of PyTorch/XLA clip their gradients before they exchange them",
    rationale=(
        "`xm.optimizer_step` averages the gradients of all processes, and then updates the model. "
        "Gradients that are clipped before have the norm of one process: the average is clipped "
        "differently than the same batch on one device. `xm.reduce_gradients` averages first."
    ),
    bad=SCRIPT.replace("UPDATE", CLIP + "        xm.optimizer_step(optimizer)"),
    good=SCRIPT.replace(
        "UPDATE", "        xm.reduce_gradients(optimizer)\n" + CLIP + "        optimizer.step()"
    ),
)

LAUNCH = re.compile(r"torch_xla\.launch|torch_xla\.distributed\.xla_multiprocessing\.spawn")
OTHERS = re.compile(
    r"(?:.*\.)?(?:reduce_gradients|all_reduce\w*|DistributedDataParallel|use_spmd"
    r"|\w*FullyShardedDataParallel|fully_shard)"
)
CLIPS = re.compile(r"torch\.nn\.utils\.clip_grad_(?:norm|value)_")
STEP = "torch_xla.core.xla_model.optimizer_step"


def find(project: Project, target: Target) -> Iterator[Finding]:
    if not uses(project, LAUNCH) or uses(project, OTHERS):
        return
    for loop in training_loops(project):
        names = [(loop.module.names.of(call.func) or "", call) for call in loop.calls]
        steps = [call.lineno for name, call in names if name == STEP]
        for name, call in names:
            if CLIPS.fullmatch(name) and steps and call.lineno < min(steps):
                message = f"{quoted(loop.module, call.func)} clips what is averaged only later"
                hint = "Call xm.reduce_gradients(optimizer) first, and then optimizer.step()."
                yield finding_at(RULE, loop.module, call, message, hint)
