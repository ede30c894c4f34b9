"""Calls for which all processes of a job must meet."""

from __future__ import annotations

import ast

from tpuctl.preflight.analysis.jax.loops import compiled_of
from tpuctl.preflight.analysis.jax.processes import global_sharding, resolved
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument
from tpuctl.preflight.analysis.values.host_code import HostCode

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


def need_of_all(project: Project, module: Module, call: ast.Call) -> str | None:
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
