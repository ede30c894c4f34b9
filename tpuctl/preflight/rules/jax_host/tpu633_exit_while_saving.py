"""TPU633 exit-while-saving."""

from __future__ import annotations

from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

SAVING = """\
import os

import jax.numpy as jnp
import orbax.checkpoint as ocp

manager = ocp.CheckpointManager("gs://bucket/run")
manager.save(1000, args=ocp.args.StandardSave({"weights": jnp.ones(8)}))
"""

RULE = Rule(
    code="TPU633",
    name="exit-while-saving",
    severity=Severity.risk,
    summary="Process exits while Orbax may still save the last checkpoint",
    rationale=(
        "Orbax saves in the background. `os._exit` ends the process at once, without the "
        "threads that write, and the last checkpoint is incomplete."
    ),
    bad=SAVING + "os._exit(0)\n",
    good=SAVING + "manager.wait_until_finished()\nos._exit(0)\n",
)

SAVERS = {"AsyncCheckpointer", "CheckpointManager", "StandardCheckpointer"}
WAITING = {"wait_until_finished", "close"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    names = project.used_names
    uses_orbax = any(name.startswith("orbax.") for name in names)
    if not uses_orbax or SAVERS.isdisjoint(names) or not WAITING.isdisjoint(names):
        return
    for module in project:
        for call in module.calls:
            if module.names.of(call.func) in ("os._exit", "os.abort") and "save" in names:
                message = f"{quoted(module, call)} does not wait for the checkpoint that is saved"
                hint = "Call wait_until_finished() of the checkpointer before."
                yield finding_at(RULE, module, call, message, hint)
