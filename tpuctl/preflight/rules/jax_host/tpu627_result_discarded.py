"""TPU627 result-discarded."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import FUNCTIONS, own_nodes, returns_of
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU627",
    name="result-discarded",
    severity=Severity.risk,
    summary="Result of a function without effects is not used",
    rationale=(
        "Arrays of JAX never change: `x.at[0].set(1)`, `optax.apply_updates`, "
        "`state.apply_gradients` and functions that restore a checkpoint return new ones. If "
        "nothing takes the result, training goes on with the old values; a job that drops what "
        "it restored begins from scratch after each preemption."
    ),
    bad="""\
import jax.numpy as jnp

counts = jnp.zeros(8)
counts.at[0].set(1.0)
print(counts)
""",
    good="""\
import jax.numpy as jnp

counts = jnp.zeros(8)
counts = counts.at[0].set(1.0)
print(counts)
""",
)

PURE = {
    *("optax.apply_updates", "jax.device_put", "jax.random.split", "jax.random.fold_in"),
    *("flax.training.checkpoints.restore_checkpoint", "flax.serialization.from_bytes"),
    *("flax.serialization.from_state_dict", "equinox.apply_updates", "equinox.tree_at"),
    *("equinox.tree_deserialise_leaves", "flax.jax_utils.replicate"),
}
UPDATES = {"set", "add", "subtract", "multiply", "divide", "power", "min", "max", "apply"}
RESTORING = ("restore", "load_checkpoint", "load_ckpt", "load_state", "resume")


def find(project: Project, target: Target) -> Iterator[Finding]:
    for module in project:
        for statement in module.of_types(ast.Expr):
            call = statement.value
            if not isinstance(call, ast.Call) or _expects_failure(module, statement):
                continue
            if _is_pure(module, call) or _restores(project, module, call):
                message = f"{quoted(module, call)} has no effect: nothing takes its result"
                hint = "Assign the result to the name of what it replaces."
                yield finding_at(RULE, module, call, message, hint)


def _expects_failure(module: Module, statement: ast.stmt) -> bool:
    """Whether a call may only be there to fail, as in a test, or to see whether it does."""
    return any(isinstance(part, (ast.With, ast.Try)) for part in module.ancestors(statement))


def _is_pure(module: Module, call: ast.Call) -> bool:
    if module.names.of(call.func) in PURE:
        return True
    match call.func:
        case ast.Attribute(value=ast.Subscript(value=ast.Attribute(attr="at")), attr=method) if (
            method in UPDATES
        ):
            return True
        case ast.Attribute(attr="apply_gradients"):
            return any(keyword.arg == "grads" for keyword in call.keywords)
    return False


def _restores(project: Project, module: Module, call: ast.Call) -> bool:
    """Whether a call is of a function that returns what it restores, and changes nothing."""
    function = function_of(project, module, call.func)
    where, definition = function or (module, None)
    if definition is None or isinstance(definition, ast.Lambda):
        return False
    returned = list(returns_of(definition))
    has_effects = any(
        isinstance(node, (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom))
        or (isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store))
        or (isinstance(node, ast.Call) and isinstance(where.parents[node], ast.Expr))
        for node in own_nodes(definition)
    )
    is_method = isinstance(where.parents.get(definition), (ast.ClassDef, *FUNCTIONS))
    return (
        definition.name.lower().startswith(RESTORING)
        and bool(returned)
        and all(part.value is not None for part in returned)
        and not has_effects
        and not is_method
        and bool(definition.args.args)
    )
