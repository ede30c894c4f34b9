"""The data loaders that training loops iterate over."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.bindings import Binding
from tpuctl.preflight.analysis.program.callers import calls_of
from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import FUNCTIONS, argument_of, returns_of
from tpuctl.preflight.analysis.torch.loops import training_loops
from tpuctl.preflight.analysis.values.host_code import HostCode

LOADER = "torch.utils.data.DataLoader"
MAX_DEPTH = 12
# Functions and methods that return what they wrap.
WRAPPERS = ("tqdm", "MpDeviceLoader", "ParallelLoader", "skip_first_batches", "enumerate", "iter")
METHODS = ("prepare", "prepare_data_loader", "setup_dataloaders")
LoaderCall = tuple[Module, ast.Call]


def training_loaders(project: Project) -> list[LoaderCall]:
    """The calls of `DataLoader` whose batches training loops train on, cached."""
    if LOADER not in project.cache:
        project.cache[LOADER] = list(
            dict.fromkeys(
                loader
                for loop in training_loops(project)
                if isinstance(loop.loop, ast.For)
                for loader in _Origins(project).of(loop.module, loop.loop.iter)
            )
        )
    loaders: list[LoaderCall] = project.cache[LOADER]
    return loaders


def loaders_of(project: Project, module: Module, node: ast.expr) -> list[LoaderCall]:
    """The calls of `DataLoader` that an expression may be, or may wrap."""
    return list(_Origins(project).of(module, node))


class _Origins:
    def __init__(self, project: Project) -> None:
        self.project, self.host = project, HostCode.of(project)
        self.active: set[ast.AST] = set()

    def of(
        self, module: Module, node: ast.expr | None, items: tuple[int, ...] = ()
    ) -> Iterator[LoaderCall]:
        """The loaders that an expression, or an item of it, may be."""
        if node is None or node in self.active or len(self.active) > MAX_DEPTH:
            return
        self.active.add(node)
        if isinstance(node, ast.Call):
            yield from self._of_call(module, node, items)
        elif isinstance(node, ast.Tuple) and items and items[0] < len(node.elts):
            yield from self.of(module, node.elts[items[0]], items[1:])
        elif isinstance(node, (ast.Name, ast.Attribute)):
            for binding in self._bindings(module, node):
                if binding.parameter is not None:
                    yield from self._of_parameter(module, binding.parameter, items)
                elif not binding.is_element and not binding.is_updated:
                    yield from self.of(module, binding.value, (*binding.items, *items))
        self.active.remove(node)

    def _bindings(self, module: Module, node: ast.Name | ast.Attribute) -> list[Binding]:
        if isinstance(node, ast.Name):
            return self.host.bindings(module, node)
        return [Binding(value) for value in self.host.assigned_values(module, node)]

    def _of_call(
        self, module: Module, call: ast.Call, items: tuple[int, ...]
    ) -> Iterator[LoaderCall]:
        name = module.names.of(call.func)
        written = str(getattr(call.func, "id", getattr(call.func, "attr", "")))
        if name == LOADER:
            yield module, call
        elif (name or written).endswith(WRAPPERS):
            yield from self.of(module, call.args[0] if call.args else None)
        elif written == "per_device_loader" and isinstance(call.func, ast.Attribute):
            yield from self.of(module, call.func.value)
        elif name is None and written in METHODS:
            number = items[0] if items else 0
            if number < len(call.args) and (items or len(call.args) == 1):
                yield from self.of(module, call.args[number], items[1:])
        elif (function := function_of(self.project, module, call.func)) is not None:
            for statement in returns_of(function[1]):
                yield from self.of(function[0], statement.value, items)

    def _of_parameter(
        self, module: Module, parameter: ast.arg, items: tuple[int, ...]
    ) -> Iterator[LoaderCall]:
        function = module.parents[module.parents[parameter]]
        if isinstance(function, FUNCTIONS):
            is_method = isinstance(module.parents.get(function), ast.ClassDef)
            for where, call in calls_of(self.project, module, function)[0]:
                passed = argument_of(function, call, parameter.arg, is_method)
                yield from self.of(where, passed, items)
