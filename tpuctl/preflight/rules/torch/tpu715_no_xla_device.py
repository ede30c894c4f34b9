"""TPU715 no-xla-device."""

from __future__ import annotations

from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.source_findings import finding_at
from tpuctl.preflight.analysis.torch.loops import training_loops
from tpuctl.preflight.analysis.torch.usage import uses_training_library
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import TORCH_STEP

RULE = Rule(
    code="TPU715",
    name="no-xla-device",
    severity=Severity.risk,
    summary="Script in a stack for PyTorch trains, but not on the TPU",
    rationale=(
        "PyTorch computes on a TPU only with tensors and models on the device of PyTorch/XLA, "
        "`torch_xla.device()`. `torch.cuda.is_available()` is false there, so that scripts for "
        "GPUs train on the CPU of the TPU VM, slowly and without an error."
    ),
    bad="""\
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(8, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1000):
    optimizer.zero_grad()
    loss = model(torch.ones(4, 8, device=device)).square().mean()
    loss.backward()
    optimizer.step()
""",
    good=TORCH_STEP
    + """\
    torch_xla.sync()
""",
    target=Target(framework="torch"),
)

DEVICES = {"xla", "tpu"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    is_on_device = any(
        name.partition(".")[0] in ("torch_xla", "torch_tpu")
        for module in project
        for name in module.names.imported
    )
    if is_on_device or uses_training_library(project) or DEVICES & project.texts:
        return
    if not any(name.startswith("torch.accelerator") for name in project.used_names):
        for loop in training_loops(project):
            message = "the loop trains on the CPU: nothing moves the model to the TPU"
            hint = "Move the model and each batch to torch_xla.device()."
            yield finding_at(RULE, loop.module, loop.loop, message, hint)
