"""Meshes of devices, and the axis names that programs bind."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.processes import resolved
from tpuctl.preflight.analysis.program.functions import Reference, reference_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument
from tpuctl.preflight.analysis.program.wrappers import PARTIAL

MESHES = {
    "jax.make_mesh": 1,
    "jax.sharding.make_mesh": 1,
    "jax.sharding.Mesh": 1,
    "jax.sharding.AbstractMesh": 1,
    "jax.interpreters.pxla.Mesh": 1,
    "jax.experimental.maps.Mesh": 1,
}
PARTITION_SPECS = {"jax.sharding.PartitionSpec", "jax.P", "jax.experimental.pjit.PartitionSpec"}
SHARD_MAPS = {"jax.shard_map", "jax.experimental.shard_map.shard_map", "flax.nnx.shard_map"}
# Keywords that bind axis names, of any function.
BINDING = {"axis_name", "spmd_axis_name", "vmap_axis_name", "axis_names"}
PMAPS = {"jax.pmap", "flax.nnx.pmap"}


def mapped_functions(
    project: Project, module: Module
) -> Iterator[tuple[ast.Call, Reference | None]]:
    """The calls of `jax.shard_map`, and partial ones that decorate, each with the function."""
    for call in module.calls:
        name = module.names.of(call.func)
        if name in SHARD_MAPS:
            mapped = argument(call, 0, "f")
            yield call, None if mapped is None else reference_of(project, module, mapped)
        elif name == PARTIAL and call.args and module.names.of(call.args[0]) in SHARD_MAPS:
            around = module.parents.get(call)
            if isinstance(around, ast.FunctionDef) and around.decorator_list[-1] is call:
                yield call, Reference(module, around)


def texts(project: Project, module: Module, node: ast.expr | None) -> tuple[str, ...] | None:
    """The texts that an expression certainly is, one or a sequence; None if that is not known."""
    if node is None:
        return None
    module, node = resolved(project, module, node)
    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, str)):
        return () if node.value is None else (node.value,)
    if not isinstance(node, (ast.Tuple, ast.List)):
        return None
    parts = [texts(project, module, part) for part in node.elts]
    return tuple(text for part in parts for text in part or ()) if None not in parts else None


def mesh_axes(project: Project, module: Module, node: ast.expr | None) -> tuple[str, ...] | None:
    """The axis names of the mesh that an expression certainly is; None if it is not known."""
    if node is None:
        return None
    module, node = resolved(project, module, node)
    name = module.names.called(node)
    if not isinstance(node, ast.Call) or name not in MESHES:
        return None
    return texts(project, module, argument(node, MESHES[name], "axis_names")) or None


def axes_of_meshes(project: Project) -> frozenset[str] | None:
    """The axis names of all meshes of a project; None if one may have others, or there is none."""
    key = "axes of meshes"
    if key not in project.cache:
        axes = [
            mesh_axes(project, module, call)
            for module in project
            for call in module.calls
            if (module.names.of(call.func) or "").rpartition(".")[2].lower().endswith("mesh")
            and "create_device_mesh" not in (module.names.of(call.func) or "")
        ]
        is_known = bool(axes) and None not in axes
        project.cache[key] = frozenset(
            name for names in axes for name in names or ()
        ) if is_known else None  # fmt: skip
    result: frozenset[str] | None = project.cache[key]
    return result


def bound_axes(project: Project) -> frozenset[str] | None:
    """The axis names that anything in a project binds; None if there may be others."""
    bound: set[str] = set()
    for module in project:
        for call in module.calls:
            name = module.names.of(call.func) or ""
            if name.startswith("jax.lax."):
                continue  # these use axes
            values = [part.value for part in call.keywords if part.arg in BINDING]
            values += call.args[1:2] if name in PMAPS else []
            is_mesh = name.rpartition(".")[2].lower().endswith("mesh")
            if is_mesh and "create_device_mesh" not in name:
                axes = mesh_axes(project, module, call)
                if axes is None:
                    return None
                bound |= {*axes}
            is_mapped = name in SHARD_MAPS
            mesh = argument(call, 1, "mesh") if is_mapped else None
            if is_mapped and (mesh_axes(project, module, mesh) or axes_of_meshes(project)) is None:
                return None
            for value in values:
                names = texts(project, module, value)
                if names is None:
                    return None
                bound |= {*names}
    return frozenset(bound)


def named_axes(
    project: Project, module: Module, node: ast.expr | None
) -> Iterator[tuple[Module, ast.Call, str]]:
    """The axis names of the partition specs that an expression certainly contains."""
    if node is None:
        return
    module, node = resolved(project, module, node)
    if isinstance(node, (ast.Tuple, ast.List)):
        for part in node.elts:
            yield from named_axes(project, module, part)
    elif isinstance(node, ast.Call) and module.names.of(node.func) in PARTITION_SPECS:
        for part in node.args:
            for text in texts(project, module, part) or ():
                yield module, node, text
