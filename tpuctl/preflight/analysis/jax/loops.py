"""Loops of the host that call compiled functions, such as training loops."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from tpuctl.preflight.analysis.jax.compiled_functions import (
    GRADIENTS,
    Compiled,
    called_compiler,
    decorated,
)
from tpuctl.preflight.analysis.jax.inference import infer_jax
from tpuctl.preflight.analysis.program.callers import calls_of
from tpuctl.preflight.analysis.program.control_flow import Loop, is_in_branch, loop_around
from tpuctl.preflight.analysis.program.functions import function_of, method_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import (
    FUNCTIONS,
    Function,
    argument_of,
    dotted,
    returns_of,
)
from tpuctl.preflight.analysis.values.host_code import HostCode

MAX_DEPTH = 5  # functions that return a compiled function, one from another
FEW = 10  # iterations of a loop that are not worth a finding


class LoopCall(NamedTuple):
    """A call of a compiled function in each iteration of a loop."""

    module: Module
    loop: Loop
    call: ast.Call
    compiled: Compiled
    takes_gradients: bool  # as training steps do

    @property
    def arguments(self) -> list[tuple[str, ast.expr]]:
        return arguments_of(self.compiled, self.call)

    @property
    def assignment(self) -> ast.Assign | None:
        """The statement that assigns its result, if it does nothing else."""
        parent = self.module.parents.get(self.call)
        return parent if isinstance(parent, ast.Assign) else None


def arguments_of(compiled: Compiled, call: ast.Call) -> list[tuple[str, ast.expr]]:
    """The arguments of a call, by the name of the parameter; those of keywords alone if positions
    are not known."""
    keywords = [(part.arg, part.value) for part in call.keywords if part.arg]
    if any(isinstance(value, ast.Starred) for value in call.args):
        return keywords
    return [*zip(compiled.parameters, call.args, strict=False), *keywords]


def loop_calls(project: Project) -> list[LoopCall]:
    """The calls of compiled functions in loops of the host, cached."""
    if LoopCall not in project.cache:
        project.cache[LoopCall] = list(_loop_calls(project))
    loop_calls: list[LoopCall] = project.cache[LoopCall]
    return loop_calls


def _loop_calls(project: Project) -> Iterator[LoopCall]:
    inference = infer_jax(project)
    with_gradients: set[ast.AST] = set()
    for traced in inference.functions():
        for node in traced.module.own_nodes(traced.node):
            name = traced.module.names.called(node) or ""
            if name.startswith(("jax.", "flax.", "equinox.")) and name.endswith(GRADIENTS):
                with_gradients |= inference.roots_of[traced.node]
    for module in project:
        for call in module.calls:
            loop = loop_around(module, call)
            if loop is None or module.enclosing_function(call) in inference.contexts:
                continue
            compiled = compiled_of(project, module, call.func)
            if compiled is not None:
                function = None if compiled.reference is None else compiled.reference.function
                takes_gradients = compiled.is_gradient or function in with_gradients
                yield LoopCall(module, loop, call, compiled, takes_gradients)


def compiled_of(project: Project, module: Module, node: ast.AST) -> Compiled | None:
    """The compiled function that an expression certainly refers to, if it is one.

    Resolves names, `self.step`, and calls of functions that return a compiled function. Cached.
    """
    key = compiled_of, node
    if key not in project.cache:
        project.cache[key] = _compiled(project, module, node, MAX_DEPTH)
    compiled: Compiled | None = project.cache[key]
    return compiled


def _compiled(project: Project, module: Module, node: ast.AST, depth: int) -> Compiled | None:
    if not depth:
        return None
    if isinstance(node, ast.Call):
        compiled = called_compiler(project, module, node)
        if compiled is not None:
            return compiled
        function = function_of(project, module, node.func)
        return None if function is None else _returned(project, *function, depth - 1)
    host = HostCode.of(project)
    if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self":
        owner = module.enclosing_class(node)
        method = None if owner is None else method_of(project, module, owner, node.attr)
        values = host.assigned_values(module, node)
        if method is not None and not values:
            compiled = decorated(*method)
            return None if compiled is None else compiled._replace(is_method=True)
        return _single(project, module, _replacing(module, node, values), depth)
    if isinstance(node, ast.Name):
        bindings = host.bindings(module, node)
        definitions = [binding.definition for binding in bindings]
        if len(definitions) == 1 and isinstance(definitions[0], FUNCTIONS):
            return decorated(module, definitions[0])
        if len(bindings) == 1 and bindings[0].parameter is not None:
            return _passed(project, module, bindings[0].parameter, depth)
        if bindings:
            values = _replacing(module, node, host.assigned_values(module, node))
            return _single(project, module, values, depth)
    name = module.names.of(node)
    definition = project.find(name) if name is not None else None
    if definition is not None and isinstance(definition[1], ast.FunctionDef):
        return decorated(definition[0], definition[1])
    return None


def _single(
    project: Project, module: Module, values: list[ast.expr | None], depth: int
) -> Compiled | None:
    """The compiled function that a name with these values refers to, if there is just one."""
    if len(values) != 1 or values[0] is None:
        return None
    return _compiled(project, module, values[0], depth - 1)


def _passed(project: Project, module: Module, parameter: ast.arg, depth: int) -> Compiled | None:
    """The compiled function that all calls pass for a parameter, if it is just one."""
    function = module.parents[module.parents[parameter]]
    if not isinstance(function, FUNCTIONS) or module.enclosing_class(function) is not None:
        return None
    calls, is_complete = calls_of(project, module, function)
    passed = {
        None if value is None else _compiled(project, where, value, depth - 1)
        for where, call in calls
        for value in [argument_of(function, call, parameter.arg)]
    }
    return passed.pop() if is_complete and len(passed) == 1 else None


def _replacing(
    module: Module, node: ast.expr, values: list[ast.expr | None]
) -> list[ast.expr | None]:
    """The values of a name without those that the last one replaces, as in `f = jax.jit(f)`."""
    last = values[-1] if values else None
    name = dotted(node)
    if (
        isinstance(last, ast.Call)
        and any(dotted(part) == name for part in last.args[:1])
        and not is_in_branch(module, last, None)
    ):
        return [last]
    return values


def _returned(project: Project, module: Module, function: Function, depth: int) -> Compiled | None:
    values = [statement.value for statement in returns_of(function)]
    if decorated(module, function) is not None:
        return None
    return _single(project, module, values, depth + 1)


def counters_of(module: Module, loop: ast.AST) -> set[str]:
    """The names of numbers that differ in each of many iterations of a loop."""
    if isinstance(loop, ast.While):
        return {
            part.target.id
            for part in loop.body
            if isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name)
            and isinstance(part.value, ast.Constant) and type(part.value.value) is int
        }  # fmt: skip
    if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call):
        return set()
    name = getattr(loop.iter.func, "id", "")
    target: ast.AST = loop.target
    if name == "enumerate" and isinstance(target, ast.Tuple):
        target = target.elts[0]
    elif name != "range" or _is_short(loop.iter):
        return set()
    return {target.id} if isinstance(target, ast.Name) else set()


def _is_short(call: ast.Call) -> bool:
    """Whether a range certainly has few elements."""
    bounds = [part.value for part in call.args if isinstance(part, ast.Constant)]
    numbers = [bound for bound in bounds if isinstance(bound, int)]
    return len(numbers) == len(call.args) and len(range(*numbers)) <= FEW
