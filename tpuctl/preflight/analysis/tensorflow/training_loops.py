"""Loops of the host that call tf.functions, such as custom training loops."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from tpuctl.preflight.analysis.program.control_flow import (
    LOOPS,
    Loop,
    is_in_branch,
    loop_around,
)
from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import FUNCTIONS, Function, own_nodes
from tpuctl.preflight.analysis.tracing.traced import FUNCTION, RUNS, root_of
from tpuctl.preflight.analysis.values.host_code import HostCode

FEW = 10  # iterations that are not worth a finding
Defined = tuple[Module, Function]


class StepCall(NamedTuple):
    """A call of a training step in each iteration of a loop of the host."""

    module: Module
    loop: Loop
    call: ast.Call

    def repeats(self, node: ast.AST) -> bool:
        """Whether a node runs in each iteration, after the step."""
        return (
            getattr(node, "lineno", 0) >= self.call.lineno
            and loop_around(self.module, node) is self.loop
            and not is_in_branch(self.module, node, self.loop)
        )

    @property
    def results(self) -> set[str]:
        """The names that are assigned what the step returns."""
        parent = self.module.parents.get(self.call)
        targets = parent.targets if isinstance(parent, ast.Assign) else []
        return {
            part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)
        }


def program_of(project: Project, module: Module, node: ast.expr) -> Defined | None:
    """The project's `tf.function` that a called expression refers to, if it is one."""
    if not project.uses_qualified(FUNCTION):
        return None
    host = HostCode.of(project)
    closure = host.evaluate(module, node).closure
    if closure is None:
        return None
    is_wrapped = any(
        value is not None and module.names.called(value) == FUNCTION
        for value in host.assigned_values(module, node)
    )
    is_program = is_wrapped or root_of(closure.module, closure.node) is not None
    return (closure.module, closure.node) if is_program else None


def step_calls(project: Project) -> list[StepCall]:
    """The calls of single training steps in loops of the host, cached."""
    if StepCall not in project.cache:
        project.cache[StepCall] = list(_step_calls(project))
    calls: list[StepCall] = project.cache[StepCall]
    return calls


def _step_calls(project: Project) -> Iterator[StepCall]:
    for module in project if project.uses_tensorflow else ():
        for call in module.calls:
            loop = loop_around(module, call)
            around = module.enclosing_function(call)
            is_traced = around is not None and root_of(module, around) is not None
            if loop is None or _is_short(loop) or is_traced:
                continue
            program = program_of(project, module, call.func)
            if program is not None and _is_single_step(project, *program):
                yield StepCall(module, loop, call)


def _is_single_step(project: Project, module: Module, program: Function) -> bool:
    """Whether a tf.function takes gradients, and has no loop around that."""
    functions = list(functions_reached(project, module, program))
    loops = (ast.walk(function) for _, function in functions)
    if any(isinstance(part, LOOPS) and _runs_steps(part) for nodes in loops for part in nodes):
        return False
    return any(
        (where.names.called(part) or "").endswith("tensorflow.GradientTape")
        for where, function in functions
        for part in ast.walk(function)
    )


def _is_short(loop: Loop) -> bool:
    """Whether a loop certainly has few iterations."""
    if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call):
        return False
    bounds = [getattr(part, "value", None) for part in loop.iter.args]
    numbers = [bound for bound in bounds if type(bound) is int]
    is_range = getattr(loop.iter.func, "id", "") == "range" and len(numbers) == len(bounds)
    return is_range and len(range(*numbers)) <= FEW


def _runs_steps(loop: ast.AST) -> bool:
    return any(
        isinstance(part, ast.Call) and getattr(part.func, "attr", "") in (*RUNS, "apply_gradients")
        for part in ast.walk(loop)
    )


def functions_reached(project: Project, module: Module, function: Function) -> Iterator[Defined]:
    """A function, and the project's functions that it calls or passes to a strategy."""
    pending: list[Defined | None] = [(module, function)]
    seen: set[Function] = set()
    while pending:
        defined = pending.pop()
        if defined is None or defined[1] in seen:
            continue
        seen.add(defined[1])
        yield defined
        where = defined[0]
        for part in own_nodes(defined[1]):
            if isinstance(part, FUNCTIONS):
                pending.append((where, part))
            elif isinstance(part, ast.Call):
                pending.append(function_of(project, where, part.func))
                if getattr(part.func, "attr", "") in RUNS and part.args:
                    pending.append(function_of(project, where, part.args[0]))
