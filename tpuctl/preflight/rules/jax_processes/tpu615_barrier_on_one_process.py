"""TPU615 barrier-on-one-process."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.loops import compiled_of
from tpuctl.preflight.analysis.jax.processes import (
    global_sharding,
    is_on_one_process,
    resolved,
)
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.values.host_code import HostCode
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

BARRIERS = {
    *(
        f"jax.experimental.multihost_utils.{name}"
        for name in (
            *("sync_global_devices", "process_allgather", "broadcast_one_to_all", "assert_equal"),
            "reached_preemption_sync_point",
        )
    ),
    "flax.training.checkpoints.save_checkpoint_multiprocess",
}
CHECKPOINTERS = ("Checkpointer", "CheckpointManager", "PyTreeCheckpointHandler")
LOCAL_DATA = "jax.make_array_from_process_local_data"
METHODS = {"save", "restore", "wait_until_finished"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    if target.workers == 1 or "process_index" not in project.used_names:
        return
    severity = Severity.error if target.workers is not None else Severity.risk
    for module in project:
        for call in module.calls:
            needs = _needs_all(project, module, call)
            if needs is None or not is_on_one_process(project, module, call):
                continue
            message = f"{quoted(module, call)} {needs}, and one process alone calls it"
            hint = "Call it on all processes, outside of the conditional on jax.process_index()."
            is_step = needs.startswith("runs")
            yield finding_at(
                RULE, module, call, message, hint, severity=Severity.risk if is_step else severity
            )


def _needs_all(project: Project, module: Module, call: ast.Call) -> str | None:
    """Why a call needs all processes, if it does."""
    if module.names.of(call.func) in BARRIERS:
        return "waits for all processes"
    if isinstance(call.func, ast.Attribute) and call.func.attr in METHODS:
        where, owner = resolved(project, module, call.func.value)
        name = where.names.called(owner) or ""
        if name.startswith("orbax.") and name.endswith(CHECKPOINTERS):
            return None if "active_processes" in project.used_names else "waits for all processes"
    compiled = compiled_of(project, module, call.func)
    if compiled is None:
        return None
    # Without a name of an axis, `pmap` exchanges nothing, and one process may run it.
    options = ("axis_name", "in_shardings", "out_shardings")
    is_global = any(compiled.keyword(name) is not None for name in options) or any(
        _is_on_all_devices(project, module, value) for value in call.args
    )
    return "runs on the devices of all processes" if is_global else None


def _is_on_all_devices(project: Project, module: Module, node: ast.expr) -> bool:
    """Whether a name may have an array that is spread over the devices of all processes."""
    bindings = HostCode.of(project).bindings(module, node) if isinstance(node, ast.Name) else []
    for call in (binding.value for binding in bindings):
        if not isinstance(call, ast.Call):
            continue
        name = module.names.of(call.func)
        number = {"jax.device_put": 1, LOCAL_DATA: 0}.get(name or "")
        if number is not None and global_sharding(
            project, module, argument(call, number, "device" if number else "sharding")
        ):
            return True
        compiled = compiled_of(project, module, call.func)
        shardings = None if compiled is None else compiled.keyword("out_shardings")
        if global_sharding(project, module, shardings):
            return True
    return False
