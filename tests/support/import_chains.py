"""The longest chain of imports between modules."""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import grimp


def longest_chain(package: str, within: str = "", *, lazy: bool = True) -> list[str]:
    """The longest chain of imports, including those for types, and those within functions
    unless `lazy` excludes them.

    Only modules whose names begin with `within` count. Their imports must not be circular.
    """
    graph = _graph(package)

    def follows(module: str, other: str) -> bool:
        if not other.startswith(within):
            return False
        if lazy:
            return True
        lines = {
            each["line_number"]
            for each in graph.get_import_details(importer=module, imported=other)
        }
        return any(not _is_in_function(module, line) for line in lines)

    @cache
    def from_here(module: str) -> tuple[str, ...]:
        imported = graph.find_modules_directly_imported_by(module)
        ways = [from_here(each) for each in sorted(imported) if follows(module, each)]
        return (module, *max(ways, key=len, default=()))

    modules = [module for module in graph.modules if module.startswith(within)]
    return list(max(map(from_here, sorted(modules)), key=len))


@cache
def _graph(package: str) -> grimp.ImportGraph:
    return grimp.build_graph(package, exclude_type_checking_imports=False)


def _is_in_function(module: str, line: int) -> bool:
    # Most imports are not indented: their modules need not be parsed.
    is_indented = _source(module).split("\n", line)[line - 1][:1].isspace()
    return is_indented and line in _lines_in_functions(module)


@cache
def _source(module: str) -> str:
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None, module
    return Path(spec.origin).read_text("utf-8")


@cache
def _lines_in_functions(module: str) -> set[int]:
    tree = ast.parse(_source(module))
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
