"""TPU702 step-not-synced."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.library_names import uses
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument
from tpuctl.preflight.analysis.source_findings import finding_at
from tpuctl.preflight.analysis.torch.loops import TrainingLoop, is_optimizer, training_loops
from tpuctl.preflight.analysis.torch.usage import uses_training_library, uses_xla_device
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
    r"torch_xla\.(?:sync|step|compile)|torch_xla\.experimental\.eager.*"
    r"|(?:torch_xla\..*\.)?(?:mark_step|wait_device_ops)"
    r"|torch_xla\..*\.(?:StepTrace|StepMarker|\w*(?:DeviceLoader|ParallelLoader))"
)


def find(project: Project, target: Target) -> Iterator[Finding]:
    if not uses_xla_device(project) or uses_training_library(project) or _is_synced(project):
        return
    for loop in training_loops(project):
        message = "the loop records its operations, but nothing runs them"
        hint = "Call torch_xla.sync() at the end of each iteration."
        yield finding_at(RULE, loop.module, _step(loop), message, hint)


def _step(loop: TrainingLoop) -> ast.AST:
    """The optimizer's step, after which the loop is to run what it recorded, or the loop."""
    steps = [
        call
        for call in loop.calls
        if is_optimizer(call.func) and getattr(call.func, "attr", "") == "step"
    ]
    return max(steps, key=lambda call: call.lineno, default=loop.loop)


def _is_synced(project: Project) -> bool:
    return uses(project, SYNCS) or any(
        _is_backend(module, call) or _has_barrier(call)
        for module in project
        for call in module.calls
    )


def _is_backend(module: Module, call: ast.Call) -> bool:
    """Whether a call compiles a model with a backend that runs what it is called for."""
    if module.names.of(call.func) != "torch.compile":
        return False
    backend = argument(call, -1, "backend")
    return backend is not None and getattr(backend, "value", None) != "inductor"


def _has_barrier(call: ast.Call) -> bool:
    """Whether a call is an optimizer's step that runs what is recorded."""
    barrier = argument(call, -1, "barrier")
    return barrier is not None and getattr(barrier, "value", True) is not False
