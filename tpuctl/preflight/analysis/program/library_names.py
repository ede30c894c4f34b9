"""The names of libraries in a project's code."""

from __future__ import annotations

import ast
import re

from tpuctl.preflight.analysis.program.source import Module, Project


def uses(project: Project, pattern: re.Pattern[str]) -> bool:
    """Whether the name of a library's code that a project uses matches a pattern as a whole: a
    qualified name, or that of a method that it calls on an object of unknown class.

    Options, attributes, keywords, and texts are none.
    """
    for module in project:
        key = "matching names", pattern
        if key not in module.cache:
            module.cache[key] = [
                [*filter(pattern.fullmatch, names)] for names in _names_used(module)
            ]
        qualified, methods = module.cache[key]
        if methods:
            return True
        for name in qualified:
            if name.partition(".")[0] not in project.modules:
                return True
    return False


def _names_used(module: Module) -> tuple[frozenset[str], frozenset[str]]:
    """The qualified names of a file, and the methods of unknown objects, cached."""
    key = "names used"
    if key not in module.cache:
        qualified = set(module.used_names[0])
        if module.names.stars:
            names = module.of_types(ast.Name)
            qualified.update(node.id for node in names if module.names.of(node) is None)
        functions = [call.func for call in module.calls if isinstance(call.func, ast.Attribute)]
        methods = {node.attr for node in functions if module.names.of(node) is None}
        module.cache[key] = frozenset(qualified), frozenset(methods)
    names_used: tuple[frozenset[str], frozenset[str]] = module.cache[key]
    return names_used
