"""TPU709 device-before-launch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.control_flow import is_in_branch
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.torch.loops import is_unconditional
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU709",
    name="device-before-launch",
    severity=Severity.error,
    summary="Script uses an XLA device before it starts the processes that are to have them",
    rationale=(
        "`torch_xla.launch` and `xmp.spawn` start a process for each chip, and each takes its "
        "chip. They raise a RuntimeError (`Runtime is already initialized`) if the script has "
        "already taken the chips, as `torch_xla.device()` does."
    ),
    bad="""\
import torch
import torch_xla

device = torch_xla.device()


def evaluate(index):
    print(torch.ones(2, device=device).sum())


if __name__ == "__main__":
    torch_xla.launch(evaluate)
""",
    good="""\
import torch
import torch_xla


def evaluate(index):
    device = torch_xla.device()
    print(torch.ones(2, device=device).sum())


if __name__ == "__main__":
    torch_xla.launch(evaluate)
""",
)

LAUNCHERS = {"torch_xla.launch", "torch_xla.distributed.xla_multiprocessing.spawn"}
INITIALIZES = {
    *("torch_xla.device", "torch_xla.core.xla_model.xla_device"),
    *("torch_xla.core.xla_model.get_xla_supported_devices",),
}


def find(project: Project, target: Target) -> Iterator[Finding]:
    for module in project:
        launches = [call for call in module.calls if _launches(module, call)]
        for call in module.calls if launches else ():
            if module.names.of(call.func) not in INITIALIZES or is_in_branch(module, call, None):
                continue
            launch = next((each for each in launches if _runs_before(module, call, each)), None)
            if launch is None:
                continue
            message = f"{quoted(module, call)} takes the chips that the processes need"
            is_sure = is_unconditional(project, module, launch)
            severity = None if is_sure else Severity.risk
            hint = "Ask for the device in the function that is launched."
            yield finding_at(RULE, module, call, message, hint, severity=severity)


def _launches(module: Module, call: ast.Call) -> bool:
    """Whether a call starts processes, rather than calling the function in this one."""
    keywords = {keyword.arg for keyword in call.keywords}
    name = module.names.of(call.func)
    return name in LAUNCHERS and not keywords & {"nprocs", "debug_single_process", None}


def _runs_before(module: Module, call: ast.Call, launch: ast.Call) -> bool:
    """Whether a call runs before another one, in the same function or when the file is loaded."""
    around = module.enclosing_function(call)
    is_same = around is module.enclosing_function(launch) and call.lineno < launch.lineno
    return is_same or (around is None and module.enclosing_function(launch) is not None)
