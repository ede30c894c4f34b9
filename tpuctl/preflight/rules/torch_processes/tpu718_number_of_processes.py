"""TPU718 number-of-processes."""

from __future__ import annotations

from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.program.syntax import argument
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.torch.loops import is_unconditional
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

SCRIPT = """\
import torch_xla.distributed.xla_multiprocessing as xmp


def train(index):
    print(index)


if __name__ == "__main__":
    xmp.spawn(train, NUMBERargs=())
"""

RULE = Rule(
    code="TPU718",
    name="number-of-processes",
    severity=Severity.error,
    summary="Number of processes that PyTorch/XLA refuses to start",
    rationale=(
        "`xmp.spawn` starts a process for each chip of the machine. `nprocs` may be 1, or is left "
        'out: other numbers raise "Unsupported nprocs".'
    ),
    bad=SCRIPT.replace("NUMBER", "nprocs=8, "),
    good=SCRIPT.replace("NUMBER", ""),
)

SPAWN = "torch_xla.distributed.xla_multiprocessing.spawn"


def find(project: Project, target: Target) -> Iterator[Finding]:
    host = HostCode.of(project)
    for module in project:
        for call in module.calls:
            if module.names.of(call.func) != SPAWN:
                continue
            number = host.number(module, argument(call, 2, "nprocs"))
            if number is not None and number != 1:
                message = f"{quoted(module, call.func)} does not start {number} processes"
                severity = None
                if not is_unconditional(project, module, call):
                    severity, message = Severity.risk, message + "; an error if it runs"
                hint = "Leave out nprocs: each chip gets a process."
                yield finding_at(RULE, module, call, message, hint, severity=severity)
