"""TPU611 key-reused."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from tpuctl.preflight.analysis.jax.loops import LoopCall, loop_calls
from tpuctl.preflight.analysis.program.control_flow import LOOPS, Loop, names_bound_in, names_in
from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import (
    FUNCTIONS,
    SCOPES,
    Function,
    argument,
    argument_of,
    parameters_of,
    parts_of,
)
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU611",
    name="key-reused",
    severity=Severity.risk,
    summary="Random key is used twice, so the numbers are not independent",
    rationale=(
        "A function of `jax.random` returns the same numbers for the same key: two layers "
        "initialized with one key start alike, and dropout with one key drops the same units in "
        "each step. `jax.random.split` and `fold_in` make new keys; a key that was split is not "
        "to be used again either. `jax.config.update('jax_debug_key_reuse', True)` finds reuse "
        "while the program runs."
    ),
    bad="""\
import jax

key = jax.random.key(0)
weights = jax.random.normal(key, (8, 8))
noise = jax.random.normal(key, (8, 8))
""",
    good="""\
import jax

key, noise_key = jax.random.split(jax.random.key(0))
weights = jax.random.normal(key, (8, 8))
noise = jax.random.normal(noise_key, (8, 8))
""",
)

# Functions of `jax.random` that may use a key again.
OTHERS = {"PRNGKey", "key", "fold_in", "clone", "key_data", "wrap_key_data", "key_impl"}
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
MAKERS = {"PRNGKey", "key", "split", "fold_in"}
MAX_DEPTH = 4  # functions that pass a key on
Uses = dict[str, ast.Call]


def find(project: Project, target: Target) -> Iterator[Finding]:
    for module in project:
        if not any(name.startswith("jax.random.") for name in module.used_names[0]):
            continue
        around = _around_draws(module)
        for scope in module.of_types(*SCOPES):
            if scope in around and not isinstance(scope, (ast.Lambda, ast.ClassDef)):
                yield from _statements(module, scope.body, {}, around)
    for loop_call in loop_calls(project):
        yield from _passed(project, loop_call)


def _passed(project: Project, loop_call: LoopCall) -> Iterator[Finding]:
    """Report keys that a loop passes to a compiled function unchanged, and that it draws with."""
    reference = loop_call.compiled.reference
    if reference is None:
        return
    module, bound = loop_call.module, names_bound_in(loop_call.loop)
    for parameter, value in loop_call.arguments:
        if not isinstance(value, ast.Name) or value.id in bound:
            continue
        bindings = HostCode.of(project).bindings(module, value)
        is_key = bindings and all(_makes_key(module, binding.value) for binding in bindings)
        if is_key and _draws(project, reference.module, reference.function, parameter, MAX_DEPTH):
            step = quoted(module, loop_call.call.func)
            message = (
                f"`{value.id}` is the same in each iteration, so {step} draws the same numbers"
            )
            hint = f"Pass a key of the step: jax.random.fold_in({value.id}, step)."
            yield finding_at(RULE, module, value, message, hint)


def _makes_key(module: Module, value: ast.expr | None) -> bool:
    while isinstance(value, ast.Subscript):
        value = value.value
    name = "" if value is None else module.names.called(value) or ""
    return name.removeprefix("jax.random.") in MAKERS


def _draws(
    project: Project, module: Module, function: Function, parameter: str, depth: int
) -> bool:
    """Whether a function certainly draws numbers with a key as it is: no call may make it
    another one by the number of the step."""
    loads = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and node.id == parameter and isinstance(node.ctx, ast.Load)
    ]
    if (
        not loads
        or not depth
        or any((module.names.called(node) or "").endswith("fold_in") for node in ast.walk(function))
    ):
        return False
    return all(_draws_with(project, module, node, depth) for node in loads)


def _draws_with(project: Project, module: Module, node: ast.Name, depth: int) -> bool:
    parent = module.parents[node]
    around = module.parents.get(parent)
    if isinstance(parent, ast.Dict) and isinstance(around, ast.keyword):
        return around.arg == "rngs"
    if isinstance(parent, ast.keyword) and isinstance(around, ast.Call):
        if parent.arg == "rngs":
            return True
        parent = around
    if not isinstance(parent, ast.Call) or node is parent.func:
        return False
    if (module.names.of(parent.func) or "").startswith("jax.random."):
        return True
    resolved = function_of(project, module, parent.func)
    if resolved is None:
        return False
    passed = [
        part.arg
        for part in parameters_of(resolved[1])
        if argument_of(resolved[1], parent, part.arg) is node
    ]
    return bool(passed) and _draws(project, *resolved, passed[0], depth - 1)


def _around_draws(module: Module) -> set[ast.AST]:
    """The calls that use a key, and all nodes around them."""
    around: set[ast.AST] = set()
    for call in module.calls:
        library, _, function = (module.names.of(call.func) or "").rpartition(".")
        if library == "jax.random" and function not in OTHERS:
            around |= {call, *module.ancestors(call)}
    return around


def _statements(
    module: Module, body: Iterable[ast.stmt], uses: Uses, around: set[ast.AST]
) -> Iterator[Finding]:
    """Follow the statements of a block; `uses` has the keys used so far, and is changed."""
    for statement in body:
        if isinstance(statement, SCOPES):
            continue
        if statement in around:
            yield from _draws_of(module, statement, uses, around)
        for name in names_bound_in(statement) if uses else ():
            uses.pop(name, None)


def _draws_of(
    module: Module, statement: ast.stmt, uses: Uses, around: set[ast.AST]
) -> Iterator[Finding]:
    parts = [part for part in parts_of(statement) if isinstance(part, (ast.expr, ast.withitem))]
    for call, name in _uses_in(module, parts, around):
        previous = uses.setdefault(name, call)
        if previous is not call:
            yield _finding(module, call, name, f"was used in line {previous.lineno}")
    if isinstance(statement, LOOPS):
        yield from _repeated(module, statement, around)
    is_plain = isinstance(statement, (ast.With, ast.AsyncWith))
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        block = getattr(statement, name, [])
        if block:
            inner = uses if is_plain else dict(uses)
            statements = [part for part in block if isinstance(part, ast.stmt)]
            yield from _statements(module, statements, inner, around)


def _uses_in(
    module: Module, parts: Iterable[ast.AST], around: set[ast.AST]
) -> Iterator[tuple[ast.Call, str]]:
    """The calls in expressions that certainly use a key, each with the key's name."""
    for part in parts:
        if part not in around or isinstance(
            part, (*FUNCTIONS, *COMPREHENSIONS, ast.IfExp, ast.BoolOp)
        ):
            continue
        yield from _uses_in(module, parts_of(part), around)
        library, _, function = (module.names.called(part) or "").rpartition(".")
        if library == "jax.random" and function not in OTHERS and isinstance(part, ast.Call):
            key = argument(part, 0, "key")
            if isinstance(key, ast.Name):
                yield part, key.id


def _repeated(module: Module, loop: Loop, around: set[ast.AST]) -> Iterator[Finding]:
    """Report keys that each iteration of a loop uses, and none replaces."""
    bound = names_bound_in(loop)
    plain = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)
    for statement in loop.body:
        if isinstance(statement, plain):
            for call, name in _uses_in(module, parts_of(statement), around):
                others = [*call.args[1:], *(keyword.value for keyword in call.keywords)]
                if name not in bound and not any(names_in(value) & bound for value in others):
                    yield _finding(module, call, name, "is the same in each iteration")


def _finding(module: Module, call: ast.Call, name: str, reason: str) -> Finding:
    message = f"`{name}` {reason}, so the same numbers are drawn again"
    hint = f"Make a new key for each use: {name}, new_key = jax.random.split({name})."
    return finding_at(RULE, module, call, message, hint)
