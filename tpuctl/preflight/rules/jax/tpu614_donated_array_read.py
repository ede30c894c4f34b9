"""TPU614 donated-array-read."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.compiled_functions import Compiled
from tpuctl.preflight.analysis.jax.inference import infer_jax
from tpuctl.preflight.analysis.jax.loops import compiled_of
from tpuctl.preflight.analysis.program.control_flow import (
    LOOPS,
    is_in_branch,
    loop_around,
    names_bound_in,
    statements_after,
    statements_before,
)
from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import (
    NESTED,
    argument_of,
    elements_of,
    parameters_of,
    parts_of,
)
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

STEP = """\
from functools import partial

import jax
import jax.numpy as jnp


@partial(jax.jit, donate_argnums=0)
def step(weights, x):
    gradient = jax.grad(lambda weights: jnp.mean((x @ weights) ** 2))(weights)
    return weights - 0.1 * gradient


weights = jnp.ones(8)
"""

RULE = Rule(
    code="TPU614",
    name="donated-array-read",
    severity=Severity.error,
    summary="Array is read after it was donated to a compiled function",
    rationale=(
        "The results of a function with `donate_argnums` take the memory of the donated arrays, "
        'which are deleted: reading one raises "Array has been deleted", also by another name, '
        "as in `best = weights`, or as a part of a state. It is certain where the function "
        "returns the donated argument updated, so that the memory is used again. A thread that "
        "saves a state while the next step donates it meets the same error, at times."
    ),
    bad=STEP
    + """\
new_weights = step(weights, jnp.ones((4, 8)))
print(jnp.sum((new_weights - weights) ** 2))
""",
    good=STEP
    + """\
old_weights = jnp.copy(weights)
weights = step(weights, jnp.ones((4, 8)))
print(jnp.sum((weights - old_weights) ** 2))
""",
)

DONATING = ("jax.jit", "jax.pmap", "jax.experimental.pjit.pjit")
# Attributes that need no values: those of arrays, and of a `TrainState`.
VALUELESS = {"shape", "dtype", "ndim", "size", "sharding", "apply_fn", "tx", "is_deleted"}
LEAVING = (ast.Return, ast.Raise, ast.Break, ast.Continue)
UPDATES = ("apply_updates", "apply_gradients", "replace", "_replace", "map", "tree_map", "update")


def find(project: Project, target: Target) -> Iterator[Finding]:
    if not {"donate_argnums", "donate_argnames"} & project.used_names:
        return
    inference = infer_jax(project)
    for module in project:
        for call in module.calls:
            passed = (*call.args, *(keyword.value for keyword in call.keywords))
            if not any(isinstance(value, ast.Name) for value in passed):
                continue
            function = module.enclosing_function(call)
            if function in inference.contexts or isinstance(function, ast.Lambda):
                continue
            compiled = compiled_of(project, module, call.func)
            if compiled is None or compiled.name not in DONATING:
                continue
            for name, parameter in _donated(compiled, call):
                is_sure = _returns_updated(compiled, parameter)
                yield from _reads(module, call, name, is_sure)
                yield from _in_background(project, module, call, name)


def _donated(compiled: Compiled, call: ast.Call) -> Iterator[tuple[str, str]]:
    """The names whose arrays a call donates, each with that of the parameter."""
    parameters = compiled.parameters
    skipped = compiled.is_method and compiled.is_decorated  # `self`, which positions count
    for number, value in enumerate(call.args):
        if isinstance(value, ast.Starred):
            return
        parameter = parameters[number] if number < len(parameters) else ""
        is_donated = number + skipped in compiled.constants("donate_argnums") or (
            parameter and parameter in compiled.constants("donate_argnames")
        )
        if is_donated and isinstance(value, ast.Name):
            yield value.id, parameter
    for keyword in call.keywords:
        is_donated = keyword.arg in compiled.constants("donate_argnames")
        if is_donated and isinstance(keyword.value, ast.Name):
            yield keyword.value.id, keyword.arg or ""


def _returns_updated(compiled: Compiled, parameter: str) -> bool:
    """Whether a function certainly returns a parameter in another version, of the same shape."""
    if compiled.reference is None or not parameter:
        return False
    updated = {parameter}
    nodes = compiled.reference.module.own_nodes(compiled.reference.function)
    for statement in sorted(
        (node for node in nodes if isinstance(node, (ast.Assign, ast.Return))),
        key=lambda node: node.lineno,
    ):
        values = [statement.value]
        if isinstance(statement.value, ast.Tuple):
            values = list(statement.value.elts)
        if not any(_is_update(value, updated) for value in values):
            continue
        if isinstance(statement, ast.Return):
            return True
        updated |= names_bound_in(statement)
    return False


def _is_update(value: ast.expr | None, names: set[str]) -> bool:
    if isinstance(value, ast.Name):
        return value.id in names
    if isinstance(value, ast.BinOp):
        return _is_update(value.left, names)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        parts = [value.func.value, *value.args]
        return value.func.attr in UPDATES and any(_is_update(part, names) for part in parts)
    return False


def _reads(module: Module, call: ast.Call, donated: str, is_sure: bool) -> Iterator[Finding]:
    """The reads of what a call donates, by each name that it has."""
    names = {donated, *_aliases(module, call, donated)}
    statement = module.statement_of(call)
    bound = names_bound_in(statement)
    step = quoted(module, call.func)
    is_branch = is_in_branch(module, call, None)
    for name in sorted(names - bound):
        node = _first_read(module, call, name)
        if node is None:
            continue
        is_certain = is_sure and not is_branch and not is_in_branch(module, node, None)
        of = "" if name == donated else f", which is in `{donated}`,"
        message = f"`{name}`{of} was donated to {step} in line {call.lineno}, which deletes it"
        if node in [*ast.walk(statement)]:
            message = (
                f"`{name}`{of} is donated to {step} in each iteration, and the first deletes it"
            )
        hint = (
            f"Use what {step} returns, or copy the arrays before: jax.tree.map(jnp.copy, {name})."
        )
        severity = Severity.error if is_certain else Severity.risk
        yield finding_at(RULE, module, node, message, hint, severity=severity)
    yield from _kept(module, call, donated)


def _aliases(module: Module, call: ast.Call, name: str) -> set[str]:
    """Other names of the arrays that a name has at a call."""
    aliases: set[str] = set()
    replaced: set[str] = set()
    for statement in statements_before(module, module.statement_of(call)):
        bound = names_bound_in(statement)
        if isinstance(statement, ast.Assign):
            targets = {part.id for part in statement.targets if isinstance(part, ast.Name)}
            if isinstance(statement.value, ast.Name) and statement.value.id == name:
                aliases |= targets - replaced
            elif name in targets:
                return aliases | (targets - replaced - {name}) | (_held(statement.value) - replaced)
        if name in bound:
            return aliases
        replaced |= bound
    return aliases


def _held(value: ast.expr) -> set[str]:
    """The names whose arrays become a part of a value, or are the value."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        parts = [keyword.value for keyword in value.keywords if keyword.arg == "params"]
        return {
            part.id for part in parts if isinstance(part, ast.Name) and value.func.attr == "create"
        }
    return {value.id} if isinstance(value, ast.Name) else set()


def _first_read(module: Module, call: ast.Call, name: str) -> ast.expr | None:
    """The first read of a name after a call, before it is bound again."""
    if isinstance(module.statement_of(call), LEAVING):
        return None
    for statement in statements_after(module, module.statement_of(call)):
        for node in _own_reads(statement):
            if node.id == name and not _needs_no_values(module, node):
                return node
        if name in names_bound_in(statement) or isinstance(statement, LEAVING):
            return None
    return None


def _own_reads(node: ast.AST) -> Iterator[ast.Name]:
    """The names that a statement reads itself, in the order of evaluation as far as it matters."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node
    elif not isinstance(node, NESTED):
        bound: set[str] = set()
        for part in parts_of(node):
            yield from (read for read in _own_reads(part) if read.id not in bound)
            if isinstance(part, ast.stmt):
                bound |= names_bound_in(part)


def _needs_no_values(module: Module, node: ast.Name) -> bool:
    parent = module.parents.get(node)
    is_identity = isinstance(parent, ast.Compare) and isinstance(parent.ops[0], (ast.Is, ast.IsNot))
    return is_identity or (isinstance(parent, ast.Attribute) and parent.attr in VALUELESS)


def _kept(module: Module, call: ast.Call, name: str) -> Iterator[Finding]:
    """Results that a loop keeps by another name, and donates in the next iteration."""
    function = module.enclosing_function(call)
    loops = [
        part
        for part in module.ancestors(call)
        if isinstance(part, LOOPS) and module.enclosing_function(part) is function
    ]
    if not loops or name not in names_bound_in(loops[0]):
        return  # what is read again is reported
    loop = loops[-1]
    for statement in ast.walk(loop):
        if not isinstance(statement, ast.Assign) or statement.lineno <= call.lineno:
            continue
        value, alias = statement.value, statement.targets[0]
        while isinstance(value, ast.Attribute) and value.attr not in VALUELESS:
            value = value.value
        is_kept = isinstance(value, ast.Name) and value.id == name and isinstance(alias, ast.Name)
        if not is_kept or not isinstance(alias, ast.Name) or alias.id == name:
            continue
        reads = (
            node for part in statements_after(module, loop) for node in _own_reads(part)
            if node.id == alias.id
        )  # fmt: skip
        if next(reads, None) is not None:
            message = (
                f"`{alias.id}` is donated to {quoted(module, call.func)} in the next iteration"
            )
            hint = "Copy the arrays: jax.tree.map(jnp.copy, …), or jax.device_get(…) to the host."
            yield finding_at(RULE, module, statement, message, hint, severity=Severity.risk)


def _in_background(
    project: Project, module: Module, call: ast.Call, name: str
) -> Iterator[Finding]:
    """Arrays that a thread reads while the next iteration of a loop donates them."""
    loop = loop_around(module, call)
    if loop is None or name not in names_bound_in(loop):
        return
    names = {name} | {
        statement.value.id
        for statement in ast.walk(loop)
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name)
        and name in names_bound_in(statement)
    }  # fmt: skip
    for handing in (node for node in ast.walk(loop) if isinstance(node, ast.Call)):
        later = (node for node in ast.walk(loop) if getattr(node, "lineno", 0) > handing.lineno)
        if any(map(_waits, later)):
            continue
        for where, start in _starts_of_threads(project, module, handing, names):
            message = (
                f"{quoted(where, start)} reads arrays that {quoted(module, call.func)} in line "
                f"{call.lineno} donates in the next iteration"
            )
            hint = "Hand it a copy on the host: jax.device_get(…)."
            yield finding_at(RULE, where, start, message, hint, severity=Severity.risk)


def _starts_of_threads(
    project: Project, module: Module, call: ast.Call, names: set[str]
) -> Iterator[tuple[Module, ast.Call]]:
    """The calls that hand one of several names to a thread, directly or in a function."""
    if any(getattr(value, "id", "") in names for value in _handed_to_thread(module, call)):
        yield module, call
    definition = function_of(project, module, call.func)
    if definition is None:
        return
    where, function = definition
    if isinstance(function, ast.Lambda):
        return
    nodes = where.own_nodes(function)
    if any(map(_waits, nodes)):
        return
    passed = {
        parameter.arg
        for parameter in parameters_of(function)
        if getattr(argument_of(function, call, parameter.arg), "id", "") in names
    } - {name for statement in function.body for name in names_bound_in(statement)}
    for start in (node for node in nodes if isinstance(node, ast.Call)):
        if any(getattr(value, "id", "") in passed for value in _handed_to_thread(where, start)):
            yield where, start


def _handed_to_thread(module: Module, call: ast.Call) -> list[ast.expr]:
    """What a call hands to a thread that it starts."""
    if module.names.of(call.func) == "threading.Thread":
        return [value for part in call.keywords if part.arg == "args"
                for value in elements_of(part.value)]  # fmt: skip
    is_submitted = isinstance(call.func, ast.Attribute) and call.func.attr == "submit"
    is_pool = "concurrent" in module.packages and module.names.of(call.func) is None
    return call.args[1:] if is_submitted and is_pool else []


def _waits(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (node.func.attr in ("join", "result", "shutdown", "block_until_ready"))
    )
