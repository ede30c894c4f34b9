"""Finds the calls of a project's functions."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cached_property

from tpuctl.preflight.analysis.functions import function_of
from tpuctl.preflight.analysis.source import Module, Project
from tpuctl.preflight.analysis.syntax import Function

__all__ = ["Callers"]


class Callers:
    """Finds the calls of one project."""

    def __init__(self, project: Project) -> None:
        self.project = project

    def calls_of(
        self, module: Module, function: Function
    ) -> tuple[list[tuple[Module, ast.Call]], bool]:
        """The calls of a project's function, and whether the list is complete."""
        if isinstance(function, ast.Lambda):
            return [], False
        around = module.parents.get(function)
        name = function.name
        if name == "__init__" and isinstance(around, ast.ClassDef):
            name = around.name
        calls, is_complete = [], True
        for where, node in self.mentions.get(name, ()):
            parent = where.parents.get(node)
            if isinstance(parent, ast.Call) and parent.func is node:
                if isinstance(around, ast.ClassDef) or self._is(where, node, function):
                    calls.append((where, parent))
            elif self._is(where, node, function):
                is_complete = False
        return calls, is_complete

    def _is(self, where: Module, node: ast.AST, function: Function) -> bool:
        definition = function_of(self.project, where, node)
        return definition is not None and definition[1] is function

    @cached_property
    def mentions(self) -> dict[str, list[tuple[Module, ast.AST]]]:
        """The reads of each name, as a name or an attribute."""
        mentions: dict[str, list[tuple[Module, ast.AST]]] = defaultdict(list)
        for module in self.project:
            for node in module.nodes:
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                    mentions[node.id].append((module, node))
                elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    mentions[node.attr].append((module, node))
        return mentions
