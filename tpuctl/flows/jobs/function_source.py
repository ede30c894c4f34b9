"""A module with what a function of a notebook needs: imports, definitions, values of variables."""

from __future__ import annotations

import ast
import inspect
import io
import pickle
import re
import symtable
import sys
import textwrap
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from tpuctl.errors import Usage

PROTOCOL = 4  # of pickle: every Python of machines reads it
CELLS = "_ih"  # IPython's variable with the code of all cells that were run


class NotebookSource:
    """Collects what a function refers to, and what that refers to.

    Definitions are sent as source, since machines may have another version of Python; modules and
    what they define are imported there; everything else is pickled.
    """

    def __init__(self, function: FunctionType) -> None:
        self.function = function
        self.variables: dict[str, bytes] = {}
        self._globals = function.__globals__
        self._imports: dict[str, str] = {}  # statements by the names that they bind
        self._definitions: dict[str, str] = {}
        self._visited: set[str] = set()
        self._add(function.__name__)

    @property
    def text(self) -> str:
        """The module. Variables are to be set before it runs, or after it those that need it."""
        imports = dict.fromkeys("\n".join(self._imports.values()).splitlines())
        return "\n".join([*imports, *(f"\n\n{code}" for code in self._definitions.values())])

    def add_references(self, names: set[str]) -> None:
        """Add definitions that a pickle refers to."""
        for name in sorted(names):
            self._add(name)

    def _add(self, name: str) -> None:
        if name in self._visited or name not in self._globals:
            return
        self._visited.add(name)
        value = self._globals[name]
        if isinstance(value, ModuleType):
            self._imports[name] = f"import {_with_alias(value.__name__, name)}"
        elif _is_defined_in(value, "__main__") and (code := self._source(name, value)):
            for other in _names_in(code):
                self._add(other)
                self._import_submodules(other, code)
            self._definitions[name] = code
        elif imported := _import_of(name, value):
            self._imports[name] = imported
        else:
            subject = f"{self.function.__name__} uses the variable {name}, which"
            data, references = pickled(value, subject)
            self.variables[name] = data
            self.add_references(references)

    def _import_submodules(self, name: str, code: str) -> None:
        """`import concurrent.futures` binds the name concurrent alone."""
        module = self._globals.get(name)
        if not isinstance(module, ModuleType) or not hasattr(module, "__path__"):
            return
        for words in re.findall(rf"\b{name}((?:\.\w+)+)", code):
            parts = words.split(".")[1:]
            dotted = [".".join([module.__name__, *parts[:end]]) for end in range(len(parts), 0, -1)]
            submodule = next((prefix for prefix in dotted if prefix in sys.modules), None)
            if submodule is not None:
                self._imports[f"{name}{words}"] = f"import {submodule}"

    def _source(self, name: str, value: Any) -> str:
        """The definition's source; empty if it is not a definition after all."""
        function = inspect.unwrap(value)
        if isinstance(function, FunctionType):
            try:
                code = textwrap.dedent(inspect.getsource(function)).rstrip()
            except (OSError, TypeError):
                raise _without_source(name) from None
            is_decorated = function is self.function and not isinstance(value, FunctionType)
            return _without_first_decorator(code) if is_decorated else code
        for cell in reversed(self._globals.get(CELLS, ())):
            try:
                statements = ast.parse(cell).body
            except SyntaxError:
                continue
            for statement in statements:
                if isinstance(statement, ast.ClassDef) and statement.name == name:
                    lines = cell.splitlines()[_first_lines(statement)[0] - 1 : statement.end_lineno]
                    return "\n".join(lines)
        if isinstance(value, type):
            raise _without_source(name)
        return ""


def pickled(value: Any, subject: str) -> tuple[bytes, set[str]]:
    """The value, and the names of `__main__` that its pickle refers to.

    Raises Usage that begins with `subject`.
    """
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, PROTOCOL)
    try:
        pickler.dump(value)
    except Exception as error:
        raise Usage(
            "Value cannot be sent",
            f"{subject} cannot be pickled: {error}",
            hint="Create it in the function, or pass what it is made from.",
        ) from error
    return buffer.getvalue(), pickler.references


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.references: set[str] = set()

    def reducer_override(self, value: Any) -> Any:
        if _is_defined_in(value, "__main__"):
            self.references.add(value.__qualname__.partition(".")[0])
        return NotImplemented


def _is_defined_in(value: Any, module: str) -> bool:
    """Whether it is a function, a class or the like of that module."""
    return hasattr(value, "__qualname__") and getattr(value, "__module__", None) == module


def _import_of(name: str, value: Any) -> str:
    """The statement that imports it from its module; empty if none does."""
    module, attribute = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not isinstance(module, str) or not attribute:
        return ""
    packages = [module[: dot.start()] for dot in re.finditer(r"\.|$", module)]
    for package in packages:  # the outermost one that exports it
        if getattr(sys.modules.get(package), attribute, None) is value:
            return f"from {package} import {_with_alias(attribute, name)}"
    return ""


def _with_alias(name: str, alias: str) -> str:
    return name if name == alias else f"{name} as {alias}"


def _without_first_decorator(code: str) -> str:
    """The function without `tpuctl.job`, which makes no difference on machines."""
    (statement,) = ast.parse(code).body
    assert isinstance(statement, ast.FunctionDef)
    return "\n".join(code.splitlines()[_first_lines(statement)[1] - 1 :])


def _first_lines(statement: ast.ClassDef | ast.FunctionDef) -> list[int]:
    """The first lines of its decorators, and its own."""
    return [*(node.lineno for node in statement.decorator_list), statement.lineno]


def _names_in(code: str) -> Iterator[str]:
    """The global names that a definition refers to, decorators and default values included."""
    table = symtable.symtable(code, "<cell>", "exec")
    yield from (symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced())
    pending = table.get_children()
    while pending:
        inner = pending.pop()
        pending += inner.get_children()
        yield from (symbol.get_name() for symbol in inner.get_symbols() if symbol.is_global())


def _without_source(name: str) -> Usage:
    return Usage(
        "Source not available",
        f"the source of {name} is not known here",
        hint="Define it in a file, or in a cell of a notebook.",
    )
