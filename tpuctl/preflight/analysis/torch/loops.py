"""Training loops of scripts for PyTorch/XLA, and what certainly runs in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tpuctl.preflight.analysis.program.callers import mentions_of
from tpuctl.preflight.analysis.program.control_flow import Loop, is_in_branch, loop_around
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import Function

DEVICES = re.compile(r"xla_device|torch_xla\.device")
MAX_CALLERS = 4  # functions between a statement and the script's top level


@dataclass(frozen=True)
class TrainingLoop:
    """A loop that computes gradients in each iteration."""

    module: Module
    loop: Loop
    backward: ast.Call
    loss: str  # the name of the loss; "" if it has none

    @property
    def calls(self) -> Iterator[ast.Call]:
        """The calls in each iteration, of this loop alone."""
        for node in ast.walk(self.loop):
            if not isinstance(node, ast.Call) or loop_around(self.module, node) is not self.loop:
                continue
            if not is_in_branch(self.module, node, self.loop):
                yield node


def training_loops(project: Project) -> list[TrainingLoop]:
    """The training loops of a project that trains on an XLA device itself, cached."""
    if TrainingLoop not in project.cache:
        is_for_xla = project.uses_name(DEVICES)
        project.cache[TrainingLoop] = list(_loops(project)) if is_for_xla else []
    loops: list[TrainingLoop] = project.cache[TrainingLoop]
    return loops


def _loops(project: Project) -> Iterator[TrainingLoop]:
    for module in project:
        for call in module.calls:
            loop = loop_around(module, call)
            is_backward = isinstance(call.func, ast.Attribute) and call.func.attr == "backward"
            if loop is not None and is_backward and not is_in_branch(module, call, loop):
                loss = getattr(getattr(call.func, "value", None), "id", "")
                yield TrainingLoop(module, loop, call, loss)


def is_unconditional(
    project: Project, module: Module, node: ast.AST, depth: int = MAX_CALLERS
) -> bool:
    """Whether the script runs a node whatever its options and its machine are."""
    if is_in_branch(module, node, None):
        return False
    function: Function | None = module.enclosing_function(node)
    if function is None:
        return True
    name = getattr(function, "name", "")
    if not depth or not name:
        return False
    return any(
        is_unconditional(project, where, mention, depth - 1)
        for where, mention in mentions_of(project, name)
        if where.enclosing_function(mention) is not function
    )
