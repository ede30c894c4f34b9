"""The names of libraries in a project's code."""

from __future__ import annotations

import ast
import re

from tpuctl.preflight.analysis.program.source import Project


def library_names(project: Project) -> frozenset[str]:
    """The names of libraries' code that a project uses, cached: qualified names, and methods that
    it calls on objects of unknown classes.

    Options, attributes, keywords, and texts are none.
    """
    key = "library names"
    if key not in project.cache:
        names: set[str] = set()
        for module in project:
            for node in module.of_types(ast.Name, ast.Attribute):
                name = module.names.of(node)
                if name is None and isinstance(node, ast.Name) and module.names.stars:
                    name = node.id
                if name is not None and name.partition(".")[0] not in project.modules:
                    names.add(name)
            names.update(
                call.func.attr
                for call in module.calls
                if isinstance(call.func, ast.Attribute) and module.names.of(call.func) is None
            )
        project.cache[key] = frozenset(names)
    names_used: frozenset[str] = project.cache[key]
    return names_used


def uses(project: Project, pattern: re.Pattern[str]) -> bool:
    """Whether a name of a library that the project uses matches a pattern as a whole."""
    return any(map(pattern.fullmatch, library_names(project)))
