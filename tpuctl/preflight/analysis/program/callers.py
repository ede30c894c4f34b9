"""Finds the calls of a project's functions."""

from __future__ import annotations

import ast

from tpuctl.preflight.analysis.program.functions import class_of, function_of
from tpuctl.preflight.analysis.program.scope_definitions import Definitions
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import Function


def calls_of(
    project: Project, module: Module, function: Function
) -> tuple[list[tuple[Module, ast.Call]], bool]:
    """The calls of a project's function, and whether the list is complete; cached."""
    key = calls_of, function
    if key not in project.cache:
        project.cache[key] = _calls_of(project, module, function)
    calls: tuple[list[tuple[Module, ast.Call]], bool] = project.cache[key]
    return calls


def _calls_of(
    project: Project, module: Module, function: Function
) -> tuple[list[tuple[Module, ast.Call]], bool]:
    if isinstance(function, ast.Lambda):
        return [], False
    owner = module.parents.get(function)
    definition: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef = function
    if isinstance(owner, ast.ClassDef) and function.name == "__init__":
        definition = owner
    calls, is_complete = [], True
    for where, node in mentions_of(project, definition.name):
        resolve = class_of if definition is owner else function_of
        resolved = resolve(project, where, node)
        is_same = resolved is not None and resolved[1] is definition
        parent = where.parents.get(node)
        if not isinstance(parent, ast.Call) or parent.func is not node:
            is_complete = is_complete and not is_same
        elif is_same or (
            # A method of an object of unknown class is matched by its name.
            resolved is None
            and isinstance(owner, ast.ClassDef)
            and isinstance(node, ast.Attribute)
            and where.names.of(node) is None
        ):
            calls.append((where, parent))
    return calls, is_complete


def mentions_of(project: Project, name: str) -> list[tuple[Module, ast.AST]]:
    """The reads of a name, as a name or an attribute."""
    definitions = Definitions.of(project)
    return [*definitions.loads.get(name, ()), *definitions.attribute_loads.get(name, ())]
