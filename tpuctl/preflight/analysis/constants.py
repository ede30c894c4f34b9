"""What texts, numbers and paths an expression stands for, as far as the source tells.

Followed are names with one meaning, constants of other files of the project, options with their
defaults (argparse, absl, click, Typer, environment variables), arguments at the places that call,
attributes, and what joins paths and texts.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from tpuctl.preflight.analysis.bindings import Binding, bindings_of
from tpuctl.preflight.analysis.callers import Callers
from tpuctl.preflight.analysis.functions import class_of, function_of
from tpuctl.preflight.analysis.script_options import Option, declared, function_options
from tpuctl.preflight.analysis.source import Module, Project
from tpuctl.preflight.analysis.string_values import (
    UNKNOWN,
    Known,
    as_text,
    begun,
    below,
    calculated,
    cast,
    is_bucket,
    is_local,
    joined_paths,
    joined_texts,
)
from tpuctl.preflight.analysis.syntax import SCOPES, argument_of, default_of, dotted, returns_of

__all__ = ["Constants", "Known", "is_bucket", "is_local"]

DEPTH = 24  # of what is followed
# Variables that the machine sets, and how their values begin.
ENVIRONMENT = {"TPUCTL_OUTPUT": "gs://", "HOME": "/"}
# Functions that return a path like one of theirs: the first argument, or the object itself.
LIKE_ARGUMENT = {
    *("str", "os.fspath", "os.fsencode", "list", "sorted", "tuple", "set", "iter", "next", "repr"),
    *("os.path.expanduser", "os.path.expandvars", "os.path.normpath", "reversed", "random.choice"),
    *("tensorflow.constant", "tensorflow.convert_to_tensor", "tensorflow.io.gfile.glob"),
    *("tensorflow.compat.as_str", "tensorflow.io.matching_files", "tensorflow.strings.join"),
    *("tensorflow.train.latest_checkpoint", "tensorflow.compat.v1.gfile.Glob"),
}
BELOW = {"glob", "rglob", "iterdir"}
WHOLE = {
    "str",
    "os.fspath",
    "tensorflow.constant",
    "tensorflow.convert_to_tensor",
    "next",
    "as_posix",
    "encode",
}
LIKE_OBJECT = {
    *("as_posix", "resolve", "absolute", "expanduser", "with_suffix", "with_name", "rstrip"),
    *("strip", "lstrip", "format", "glob", "rglob", "iterdir", "encode", "as_uri", "with_stem"),
}
# What only ever names files of this machine.
HERE = {
    **dict.fromkeys(("os.getcwd", "pathlib.Path.cwd", "pathlib.Path.home"), "/"),
    **dict.fromkeys(("os.path.abspath", "os.path.realpath", "glob.glob", "glob.iglob"), "/"),
    **dict.fromkeys(("tempfile.mkdtemp", "tempfile.gettempdir", "tempfile.mkstemp"), "/tmp/"),
    **dict.fromkeys(("tempfile.TemporaryDirectory", "tempfile.NamedTemporaryFile"), "/tmp/"),
    **dict.fromkeys(("tensorflow.keras.utils.get_file", "keras.utils.get_file"), "/"),
    **dict.fromkeys(("os.listdir", "os.scandir", "os.walk"), "/"),
}
JOINS = {"os.path.join", "posixpath.join", "tensorflow.io.gfile.join", "pathlib.Path"}
JOINS |= {"pathlib.PurePath", "pathlib.PosixPath", "pathlib.PurePosixPath"}


class Constants:
    """Looks values up in one project."""

    @classmethod
    def of(cls, project: Project) -> Constants:
        """The one of a project, for all rules that ask."""
        found = project.known.get(cls)
        if not isinstance(found, Constants):
            found = project.known[cls] = cls(project)
        return found

    def __init__(self, project: Project) -> None:
        self.project = project
        self.callers = Callers(project)
        self._bound: dict[Module, dict[tuple[ast.AST, str], list[Binding]]] = {}
        self._busy: set[tuple[ast.AST, ast.AST | None]] = set()

    def values(self, module: Module, node: ast.AST | None) -> tuple[Known, ...]:
        """All that an expression may be; empty where nobody can tell."""
        if node is None or len(self._busy) > DEPTH or (node, None) in self._busy:
            return ()
        self._busy.add((node, None))
        try:
            found = dict.fromkeys(self._values(module, node))
        finally:
            self._busy.discard((node, None))
        return tuple(found) if len(found) <= 16 else ()

    def numbers(self, module: Module, node: ast.AST | None) -> tuple[Known, ...]:
        """Those of its values that are whole numbers; empty where another is possible."""
        found = self.values(module, node)
        if all(isinstance(one.value, int) and not isinstance(one.value, bool) for one in found):
            return found
        return ()

    def bindings(self, module: Module, node: ast.Name) -> list[Binding]:
        """What a name was given, in the nearest scope that gives it something."""
        bound = self._bindings(module)
        for scope in self._scopes(module, node):
            found = bound.get((scope, node.id))
            if found:
                return found
        return []

    def given(self, module: Module, node: ast.AST) -> list[ast.expr | None]:
        """The expressions that a name or an attribute of `self` was given."""
        found: list[Binding] = []
        if isinstance(node, ast.Name):
            found = self.bindings(module, node)
        elif isinstance(node, ast.Attribute) and dotted(node.value) in ("self", "cls"):
            around = module.class_around(node)
            if around is not None:
                found = self._bindings(module).get((around, f"self.{node.attr}"), [])
        return [None if one.is_element else one.value for one in found]

    # How values come about ---------------------------------------------------------------------

    def _values(self, module: Module, node: ast.AST) -> Iterable[Known]:
        """Of a literal; of others by their own method."""
        match node:
            case ast.Constant(value=bytes(raw)):
                return (Known(raw.decode("utf-8", "replace")),)
            case ast.Constant(value=str() | int() | float() | None as value):
                return (Known(value),)
            case ast.List(elts=several) | ast.Tuple(elts=several) | ast.Set(elts=several):
                return self._either(module, several)
            case ast.Starred(value=value) | ast.NamedExpr(value=value) | ast.Await(value=value):
                return self.values(module, value)
            case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element):
                return self.values(module, element)
        kind = KINDS.get(type(node))
        return () if kind is None else kind(self, module, node)

    def _formatted(self, module: Module, node: ast.FormattedValue) -> list[Known]:
        is_plain = node.format_spec is None and node.conversion == -1
        return [as_text(one) for one in self.values(module, node.value)] if is_plain else []

    def _negative(self, module: Module, node: ast.UnaryOp) -> list[Known]:
        found = self.values(module, node.operand)
        return [
            replace(one, value=-one.value)
            for one in found
            if isinstance(node.op, ast.USub) and isinstance(one.value, (int, float))
        ]

    def _either(self, module: Module, several: list[ast.expr]) -> list[Known]:
        found = [self.values(module, one) for one in several]
        flat = [one for values in found for one in values]
        return flat if all(found) else [replace(one, is_sure=False) for one in flat]

    def _first_true(self, module: Module, node: ast.BoolOp) -> list[Known]:
        several = node.values if isinstance(node.op, ast.Or) else []
        found: list[Known] = []
        for number, one in enumerate(several):
            values = self.values(module, one)
            if not values:
                rest = self._either(module, several[number + 1 :])
                return [replace(other, is_sure=False) for other in [*found, *rest]]
            found += [value for value in values if value.value or not value.is_whole]
            if all(value.value for value in values) and all(value.is_sure for value in values):
                break
            if number == len(several) - 1:
                found += [value for value in values if not value.value]
        return found

    def _joined(self, module: Module, node: ast.JoinedStr) -> list[Known]:
        found = [Known("")]
        for part in node.values:
            found = self._pairs(found, list(self.values(module, part)), joined_texts)
        return [one for one in found if one.text]

    def _pairs(
        self, some: list[Known], others: list[Known], join: Callable[[Known, Known], Known | None]
    ) -> list[Known]:
        """Each with each; where the second is unknown, how the first begins."""
        if not some:
            return []
        if not others:
            others = [UNKNOWN]
        if len(some) * len(others) > 16:
            return []
        found = [join(one, other) for one in some for other in others]
        return [one for one in found if one is not None]

    def _operation(self, module: Module, node: ast.BinOp) -> list[Known]:
        left, right = list(self.values(module, node.left)), list(self.values(module, node.right))
        if left and all(isinstance(one.value, str) for one in left):
            if isinstance(node.op, ast.Add):
                return self._pairs(left, right, joined_texts)
            if isinstance(node.op, ast.Div):
                return self._pairs(left, right, joined_paths)
            if isinstance(node.op, ast.Mod):
                return [begun(one, "%") for one in left]
            return []
        return self._pairs(left, right, calculated(node.op)) if left and right else []

    # Names ------------------------------------------------------------------------------------

    def _scopes(self, module: Module, node: ast.AST) -> Iterator[ast.AST]:
        nearest = True
        for one in module.around(node):
            if isinstance(one, SCOPES):
                if not isinstance(one, ast.ClassDef) or nearest:
                    yield one
                nearest = False

    def _named(self, module: Module, node: ast.Name) -> list[Known]:
        if node.id == "__file__":
            return [Known("/", is_whole=False)]
        found = self.bindings(module, node)
        if found:
            return self._bound_values(module, found)
        name = module.names.of(node)
        return self._constant(name) if name is not None else []

    def _bound_values(self, module: Module, found: list[Binding]) -> list[Known]:
        values = [self._binding(module, one) for one in found]
        flat = [one for several in values for one in several]
        return flat if all(values) else [replace(one, is_sure=False) for one in flat]

    def _binding(self, module: Module, one: Binding) -> list[Known]:
        if one.parameter is not None:
            return self._parameter(module, one.parameter)
        return list(self.values(module, one.value)) if one.value is not None else []

    def _constant(self, name: str) -> list[Known]:
        """A constant of another file of the project."""
        place, _, last = name.rpartition(".")
        module = self.project.modules.get(place)
        if module is None:
            return []
        found = self._bindings(module).get((module.tree, last))
        if found:
            return self._bound_values(module, found)
        told = module.names.known.get(last)
        return self._constant(told) if told is not None and told != name else []

    def _parameter(self, module: Module, node: ast.arg) -> list[Known]:
        function = module.parents[module.parents[node]]
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return []
        option = function_options(module, function).get(node.arg)
        if option is not None:
            return self._option(option)
        default = default_of(function, node.arg)
        found: list[Known] = []
        calls, is_all = self.callers.calls_of(module, function)
        is_method = isinstance(module.parents.get(function), ast.ClassDef)
        for where, call in calls:
            given = argument_of(function, call, node.arg, is_method)
            if given is not None:
                values = list(self.values(where, given))
            else:
                values = list(self.values(module, default))
            if not values:
                is_all = False
            found += values
        if not calls:
            is_all, found = False, list(self.values(module, default))
        return found if is_all else [replace(one, is_sure=False) for one in found]

    # Attributes, items, options ---------------------------------------------------------------

    @cached_property
    def _options(self) -> dict[str, list[Option]]:
        found: dict[str, list[Option]] = defaultdict(list)
        for module in self.project:
            for name, option in declared(module).items():
                found[name].append(option)
        return found

    def _option(self, option: Option) -> list[Known]:
        values = self.values(option.module, option.default)
        return [replace(one, is_sure=False, option=option.title) for one in values]

    def _attribute(self, module: Module, node: ast.Attribute) -> list[Known]:
        name = module.names.of(node)
        if name is not None and (found := self._constant(name)):
            return found
        owner = node.value
        if dotted(owner) in ("self", "cls"):
            around = module.class_around(node)
            return [] if around is None else self._member(module, around, node.attr)
        if isinstance(owner, ast.Name) and (found := self._of_object(module, owner, node.attr)):
            return found
        base = dotted(owner.func if isinstance(owner, ast.Call) else owner)
        is_flag = name is None or name.startswith(("absl.", "tensorflow.compat.v1."))
        if base is not None and is_flag and node.attr in self._options:
            options = self._options[node.attr]
            return [one for option in options for one in self._option(option)]
        if node.attr in ("parent", "name", "path"):
            return [replace(one, is_whole=False) for one in self.values(module, owner)]
        return []

    def _of_object(self, module: Module, owner: ast.Name, name: str) -> list[Known]:
        """An attribute of a class of the project's own, or of a plain namespace."""
        found = self.bindings(module, owner)
        if len(found) == 1 and isinstance(found[0].value, ast.Call):
            call = found[0].value
            given = next((one.value for one in call.keywords if one.arg == name), None)
            if given is not None:
                return list(self.values(module, given))
            owner_class = class_of(self.project, module, call.func)
        else:
            owner_class = None if found else class_of(self.project, module, owner)
        return [] if owner_class is None else self._member(*owner_class, name)

    def _member(self, module: Module, owner: ast.ClassDef, name: str) -> list[Known]:
        found = [*self._bindings(module).get((owner, f"self.{name}"), ())]
        found += self._bindings(module).get((owner, name), ())
        return self._bound_values(module, found)

    def _item(self, module: Module, node: ast.Subscript) -> list[Known]:
        if module.names.of(node.value) == "os.environ":
            return self._environment(module, node.slice, None)
        owner = node.value
        found = self.bindings(module, owner) if isinstance(owner, ast.Name) else []
        values = [one.value for one in found] if found else [owner]
        if len(values) == 1 and isinstance(values[0], ast.Dict):
            for key, value in zip(values[0].keys, values[0].values, strict=True):
                if key is not None and ast.dump(key) == ast.dump(node.slice):
                    return list(self.values(module, value))
            return []
        known = self.values(module, owner)
        return [one for one in known if isinstance(one.value, str)] if len(values) == 1 else []

    def _environment(self, module: Module, name: ast.expr, default: ast.expr | None) -> list[Known]:
        text = next((one.text for one in self.values(module, name)), "")
        if text in ENVIRONMENT:
            return [Known(ENVIRONMENT[text], is_whole=False)]
        values = self.values(module, default)
        return [replace(one, is_sure=False, option=text) for one in values]

    # Calls ------------------------------------------------------------------------------------

    def _call(self, module: Module, node: ast.Call) -> Iterable[Known]:
        name = module.names.of(node.func)
        if name is None and isinstance(node.func, ast.Name):
            name = node.func.id
        first = node.args[0] if node.args else None
        if name in HERE:
            return (Known(HERE[name], is_whole=False),)
        if name in ("os.environ.get", "os.getenv", "os.environ.setdefault") and first is not None:
            default = node.args[1] if len(node.args) > 1 else None
            return self._environment(module, first, default)
        if name in JOINS:
            return self._path(module, node.args)
        if name in LIKE_ARGUMENT and first is not None:
            found = self.values(module, first)
            return found if name in WHOLE else [replace(one, is_whole=False) for one in found]
        if name in ("int", "float") and first is not None:
            kind = int if name == "int" else float
            return [one for one in (cast(one, kind) for one in self.values(module, first)) if one]
        if name == "os.path.dirname" and first is not None:
            return [replace(one, is_whole=False) for one in self.values(module, first)]
        if isinstance(node.func, ast.Attribute):
            if node.func.attr == "joinpath":
                return self._path(module, [node.func.value, *node.args])
            if node.func.attr == "get" and first is not None:
                item = ast.Subscript(node.func.value, first, ast.Load())
                return self._item(module, item)
            if node.func.attr in LIKE_OBJECT:
                found = self.values(module, node.func.value)
                if node.func.attr in WHOLE:
                    return found
                is_below = node.func.attr in BELOW
                return [below(one) if is_below else begun(one, "{") for one in found]
        return self._returned(module, node)

    def _path(self, module: Module, parts: list[ast.expr]) -> list[Known]:
        found = list(self.values(module, parts[0])) if parts else [Known(".")]
        for part in parts[1:]:
            found = self._pairs(found, list(self.values(module, part)), joined_paths)
        return found

    def _returned(self, module: Module, node: ast.Call) -> list[Known]:
        """What a function of the project's own returns."""
        told = function_of(self.project, module, node.func)
        if told is None or isinstance(told[1], ast.Lambda):
            return []
        returned = [one.value for one in returns_of(told[1]) if one.value is not None]
        return self._either(told[0], returned)

    # What names are given ---------------------------------------------------------------------

    def _bindings(self, module: Module) -> dict[tuple[ast.AST, str], list[Binding]]:
        if module not in self._bound:
            self._bound[module] = bindings_of(module)
        return self._bound[module]


KINDS: dict[type[ast.AST], Callable[[Constants, Module, Any], Iterable[Known]]] = {
    ast.JoinedStr: Constants._joined,
    ast.FormattedValue: Constants._formatted,
    ast.Name: Constants._named,
    ast.Attribute: Constants._attribute,
    ast.BinOp: Constants._operation,
    ast.UnaryOp: Constants._negative,
    ast.IfExp: lambda self, module, node: self._either(module, [node.body, node.orelse]),
    ast.BoolOp: Constants._first_true,
    ast.Subscript: Constants._item,
    ast.Call: Constants._call,
}
