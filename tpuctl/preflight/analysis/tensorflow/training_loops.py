"""Loops of the host that call tf.functions, such as custom training loops."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tpuctl.preflight.analysis.program.control_flow import LOOPS, Loop, loop_around
from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import FUNCTIONS, Function, own_nodes
from tpuctl.preflight.analysis.tracing.traced import FUNCTION, RUNS, root_of
from tpuctl.preflight.analysis.values.host_code import HostCode

Defined = tuple[Module, Function]


@dataclass(frozen=True)
class StepCall:
    """A call of a training step in each iteration of a loop of the host."""

    module: Module
    loop: Loop
    call: ast.Call

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
    for module in project:
        for call in module.calls:
            loop = loop_around(module, call)
            around = module.enclosing_function(call)
            if loop is None or (around is not None and root_of(module, around) is not None):
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
