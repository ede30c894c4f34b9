"""TPU619 axis-not-bound."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.inference import infer_jax
from tpuctl.preflight.analysis.jax.meshes import (
    axes_of_meshes,
    bound_axes,
    mapped_functions,
    mesh_axes,
    named_axes,
    texts,
)
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tracing.reachability import reachability_of
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import failure

RULE = Rule(
    code="TPU619",
    name="axis-not-bound",
    severity=Severity.error,
    summary="Name of an axis that no mesh, pmap or vmap has",
    rationale=(
        "`jax.lax.psum` and similar functions work over an axis that `jax.pmap`, `jax.shard_map` "
        "or `jax.vmap` names, and raise a NameError for others. A PartitionSpec with a name that "
        "its mesh lacks raises a ValueError. Only names that are written in the source, or "
        "assigned once, are compared."
    ),
    bad="""\
import jax
import jax.numpy as jnp


def step(weights):
    return jax.lax.pmean(weights, "batch")


print(jax.pmap(step, axis_name="data")(jnp.ones((1, 8))))
""",
    good="""\
import jax
import jax.numpy as jnp


def step(weights):
    return jax.lax.pmean(weights, "data")


print(jax.pmap(step, axis_name="data")(jnp.ones((1, 8))))
""",
)

COLLECTIVES = {
    **dict.fromkeys(
        (
            *("psum", "pmean", "pmax", "pmin", "all_gather", "all_to_all", "ppermute", "pshuffle"),
            *("psum_scatter", "pswapaxes"),
        ),
        1,
    ),
    "axis_index": 0,
    "axis_size": 0,
}


def find(project: Project, target: Target) -> Iterator[Finding]:
    yield from _collectives(project)
    for module in project:
        mapped = {call for call, _ in mapped_functions(project, module)}
        for call in module.calls:
            name = module.names.of(call.func)
            if name == "jax.sharding.NamedSharding":
                axes = mesh_axes(project, module, argument(call, 0, "mesh"))
                specs = [argument(call, 1, "spec")]
            elif call in mapped:
                axes = mesh_axes(project, module, argument(call, 1, "mesh"))
                specs = [argument(call, 2, "in_specs"), argument(call, 3, "out_specs")]
            elif name == "jax.lax.with_sharding_constraint":
                axes, specs = None, [argument(call, 1, "shardings")]
            else:
                continue
            mesh_names = frozenset(axes) if axes is not None else axes_of_meshes(project)
            if mesh_names is not None:
                for spec in specs:
                    yield from _specs(project, module, spec, mesh_names)


def _specs(
    project: Project, module: Module, spec: ast.expr | None, mesh_names: frozenset[str]
) -> Iterator[Finding]:
    for where, node, axis in named_axes(project, module, spec):
        if axis not in mesh_names:
            text = _listed(mesh_names)
            message = f'{quoted(where, node)} names the axis "{axis}", and the mesh has {text}'
            is_reached = bool(reachability_of(project).of(where, node))
            severity = Severity.error if is_reached else Severity.risk
            yield finding_at(RULE, where, node, message, f"Use {text}.", severity=severity)


def _collectives(project: Project) -> Iterator[Finding]:
    inference, bound = infer_jax(project), bound_axes(project)
    if bound is None:
        return
    for traced, node in inference.sites:
        library, _, function = (traced.module.names.called(node) or "").rpartition(".")
        if library != "jax.lax" or function not in COLLECTIVES or not isinstance(node, ast.Call):
            continue
        axes = texts(project, traced.module, argument(node, COLLECTIVES[function], "axis_name"))
        for axis in axes or ():
            if axis not in bound:
                text = quoted(traced.module, node)
                message = f'{text} needs the axis "{axis}", which nothing binds'
                hint = f"Use {_listed(bound)}." if bound else "Name it in jax.pmap or a mesh."
                yield failure(inference, RULE, traced, node, message, hint)


def _listed(names: frozenset[str]) -> str:
    return " or ".join(f'"{name}"' for name in sorted(names))
