"""TPU702 step-not-synced."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.source_findings import finding_at
from tpuctl.preflight.analysis.torch.loops import training_loops
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import TORCH_STEP

RULE = Rule(
    code="TPU702",
    name="step-not-synced",
    severity=Severity.cost,
    summary="Training loop for PyTorch/XLA never runs what it records",
    rationale=(
        "PyTorch/XLA records operations, and runs them at `torch_xla.sync()` (formerly "
        "`xm.mark_step()`), which `MpDeviceLoader` and `xm.optimizer_step(…, barrier=True)` also "
        "call. Without any of them, the recorded program grows in each iteration: nothing runs "
        "until a value is read, and each read compiles a longer program."
    ),
    bad=TORCH_STEP,
    good=TORCH_STEP
    + """\
    torch_xla.sync()
""",
)

# Whatever runs the recorded operations, or lets other code do so.
SYNCS = re.compile(
    r"mark_step|wait_device_ops|torch_xla\.(?:sync|step|compile)|torch_xla\.experimental\.eager.*"
    r"|StepTrace|StepMarker|\w*(?:DeviceLoader|ParallelLoader|Trainer)"
    r"|accelerate|\w*lightning\w*"
)


def find(project: Project, target: Target) -> Iterator[Finding]:
    for loop in training_loops(project):
        if not _is_synced(project):
            message = "the loop records its operations, but nothing runs them"
            hint = "Call torch_xla.sync() at the end of each iteration."
            yield finding_at(RULE, loop.module, loop.loop, message, hint)


def _is_synced(project: Project) -> bool:
    return (
        project.uses_name(SYNCS)
        or "openxla" in project.texts  # a backend of torch.compile
        or any(
            keyword.arg == "barrier"
            and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
            for module in project
            for call in module.calls
            for keyword in call.keywords
        )
    )
