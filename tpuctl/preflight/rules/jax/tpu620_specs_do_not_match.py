"""TPU620 specs-do-not-match."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.loops import compiled_of
from tpuctl.preflight.analysis.jax.meshes import mapped_functions
from tpuctl.preflight.analysis.jax.processes import resolved
from tpuctl.preflight.analysis.program.functions import Reference
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument, returns_of
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tracing.reachability import reachability_of
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU620",
    name="specs-do-not-match",
    severity=Severity.error,
    summary="Not as many specs or shardings as arguments or results",
    rationale=(
        "`in_specs` of `jax.shard_map` and `in_shardings` of `jax.jit` are one spec for all "
        "arguments, or a tuple with one for each; `out_specs` likewise for the results. Another "
        "number raises a ValueError."
    ),
    bad="""\
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("data",))


def scaled(x, factor):
    return x * factor


print(jax.shard_map(scaled, mesh=mesh, in_specs=(P("data"),), out_specs=P("data"))(jnp.ones(8), 2))
""",
    good="""\
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("data",))


def scaled(x, factor):
    return x * factor


specs = (P("data"), P())
print(jax.shard_map(scaled, mesh=mesh, in_specs=specs, out_specs=P("data"))(jnp.ones(8), 2.0))
""",
)

SHARDED = ("jax.jit", "jax.experimental.pjit.pjit")


def find(project: Project, target: Target) -> Iterator[Finding]:
    for module in project:
        for call, reference in mapped_functions(project, module):
            if reference is not None:
                yield from _mapped(project, module, call, reference)
        for call in module.calls if "in_shardings" in project.used_names else ():
            yield from _compiled(project, module, call)


def _mapped(
    project: Project, module: Module, call: ast.Call, reference: Reference
) -> Iterator[Finding]:
    count, passed = _parameter_count(reference), argument(call, 2, "in_specs")
    spec_count = _length(project, module, passed)
    if passed is not None and count is not None and spec_count is not None and count != spec_count:
        takes = f"and the function takes {_arguments(count)}"
        yield _finding(project, module, passed, "in_specs", spec_count, takes)
    results, expected = _result_count(reference), argument(call, 3, "out_specs")
    spec_count = _length(project, module, expected)
    if (
        expected is not None
        and results is not None
        and spec_count is not None
        and results != spec_count
    ):
        returns = f"and the function returns {results} values"
        yield _finding(project, module, expected, "out_specs", spec_count, returns)


def _compiled(project: Project, module: Module, call: ast.Call) -> Iterator[Finding]:
    compiled = compiled_of(project, module, call.func)
    if compiled is None or compiled.name not in SHARDED or compiled.static != frozenset():
        return
    is_known = not (call.keywords or any(isinstance(part, ast.Starred) for part in call.args))
    spec_count = _length(project, compiled.module, compiled.keyword("in_shardings"))
    if is_known and spec_count is not None and spec_count != len(call.args):
        passes = f"and the call passes {_arguments(len(call.args))}"
        yield _finding(project, module, call, "in_shardings", spec_count, passes)


def _arguments(count: int) -> str:
    return f"{count} argument" + "s" * (count != 1)


def _finding(
    project: Project, module: Module, node: ast.expr, name: str, spec_count: int, other: str
) -> Finding:
    message = f"{quoted(module, node)}: {name} has {spec_count}, {other}"
    hint = "Write one for each, in a tuple, or a single one for all."
    is_reached = bool(reachability_of(project).of(module, node))
    severity = Severity.error if is_reached else Severity.risk
    return finding_at(RULE, module, node, message, hint, severity=severity)


def _length(project: Project, module: Module, node: ast.expr | None) -> int | None:
    """The number of elements of a tuple; None for anything else."""
    if node is None:
        return None
    _, node = resolved(project, module, node)
    is_plain = isinstance(node, ast.Tuple) and not any(
        isinstance(part, ast.Starred) for part in node.elts
    )
    return len(node.elts) if is_plain and isinstance(node, ast.Tuple) else None


def _parameter_count(reference: Reference) -> int | None:
    """How many arguments a function takes by position; None if that varies."""
    arguments = reference.function.args
    if arguments.vararg is not None or arguments.defaults or reference.keywords:
        return None
    if reference.module.enclosing_class(reference.function) is not None:
        return None
    return len([*arguments.posonlyargs, *arguments.args]) - reference.positional


def _result_count(reference: Reference) -> int | None:
    """How many values a function certainly returns, in tuples."""
    if isinstance(reference.function, ast.Lambda):
        values: list[ast.expr | None] = [reference.function.body]
    else:
        values = [statement.value for statement in returns_of(reference.function)]
    counts = {len(value.elts) if isinstance(value, ast.Tuple) else None for value in values}
    return counts.pop() if len(counts) == 1 else None
