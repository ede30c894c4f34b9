"""TPU615 barrier-on-one-process."""

from __future__ import annotations

from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.collectives import need_of_all
from tpuctl.preflight.analysis.jax.processes import is_on_one_process
from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

IMPORTS = """\
import jax
from jax.experimental import multihost_utils

jax.distributed.initialize()
"""

RULE = Rule(
    code="TPU615",
    name="barrier-on-one-process",
    severity=Severity.error,
    summary="One process of a slice waits for the others, which never come",
    rationale=(
        "Barriers, functions that exchange arrays among processes, and Orbax's checkpoints are "
        "for all processes: each waits until all have called it. Under "
        "`if jax.process_index() == 0`, the first process waits forever, and the others at their "
        "next step. Orbax itself lets one process write what all have. Without a stack, whose TPU "
        "may have one worker, these are risks, as are compiled functions over all devices."
    ),
    bad=IMPORTS
    + """\
if jax.process_index() == 0:
    multihost_utils.sync_global_devices("saved")
""",
    good=IMPORTS
    + """\
if jax.process_index() == 0:
    print("saved")
multihost_utils.sync_global_devices("saved")
""",
    target=Target(workers=2),
)


def find(project: Project, target: Target) -> Iterator[Finding]:
    if target.workers == 1 or "process_index" not in project.used_names:
        return
    severity = Severity.error if target.workers is not None else Severity.risk
    for module in project:
        for call in module.calls:
            needs = need_of_all(project, module, call)
            if needs is None or not is_on_one_process(project, module, call):
                continue
            message = f"{quoted(module, call)} {needs}, and one process alone calls it"
            hint = "Call it on all processes, outside of the conditional on jax.process_index()."
            is_step = needs.startswith("runs")
            yield finding_at(
                RULE, module, call, message, hint, severity=Severity.risk if is_step else severity
            )
