"""Evaluates expressions to constant texts, numbers and paths, as far as the source allows.

Follows variables, constants of other modules, defaults of options (argparse, absl, click, Typer,
environment variables), arguments of calls, attributes, and operations on paths and texts.
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
    ConstantValue,
    arithmetic,
    as_text,
    cast,
    is_bucket,
    is_local,
    join_paths,
    join_texts,
    path_below,
    truncated_at,
)
from tpuctl.preflight.analysis.syntax import SCOPES, argument_of, default_of, dotted, returns_of

__all__ = ["ConstantValue", "Constants", "is_bucket", "is_local"]

MAX_DEPTH = 24  # of nested evaluations
# Environment variables set on the machine, and the prefixes of their values.
ENVIRONMENT = {"TPUCTL_OUTPUT": "gs://", "HOME": "/"}
# Functions whose result is derived from the first argument, or methods from the object.
RETURNS_ARGUMENT = {
    *("str", "os.fspath", "os.fsencode", "list", "sorted", "tuple", "set", "iter", "next", "repr"),
    *("os.path.expanduser", "os.path.expandvars", "os.path.normpath", "reversed", "random.choice"),
    *("tensorflow.constant", "tensorflow.convert_to_tensor", "tensorflow.io.gfile.glob"),
    *("tensorflow.compat.as_str", "tensorflow.io.matching_files", "tensorflow.strings.join"),
    *("tensorflow.train.latest_checkpoint", "tensorflow.compat.v1.gfile.Glob"),
}
LISTS_FOLDER = {"glob", "rglob", "iterdir"}
VALUE_PRESERVING = {
    "str",
    "os.fspath",
    "tensorflow.constant",
    "tensorflow.convert_to_tensor",
    "next",
    "as_posix",
    "encode",
}
RETURNS_OBJECT = {
    *("as_posix", "resolve", "absolute", "expanduser", "with_suffix", "with_name", "rstrip"),
    *("strip", "lstrip", "format", "glob", "rglob", "iterdir", "encode", "as_uri", "with_stem"),
}
# Functions that always return local paths.
LOCAL_PATHS = {
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
    """Evaluates expressions of one project."""

    @classmethod
    def of(cls, project: Project) -> Constants:
        """The instance of a project, shared by all rules."""
        constants = project.cache.get(cls)
        if not isinstance(constants, Constants):
            constants = project.cache[cls] = cls(project)
        return constants

    def __init__(self, project: Project) -> None:
        self.project = project
        self.callers = Callers(project)
        self._bound: dict[Module, dict[tuple[ast.AST, str], list[Binding]]] = {}
        self._active: set[tuple[ast.AST, ast.AST | None]] = set()

    def values(self, module: Module, node: ast.AST | None) -> tuple[ConstantValue, ...]:
        """All possible values of an expression; empty if unknown."""
        if node is None or len(self._active) > MAX_DEPTH or (node, None) in self._active:
            return ()
        self._active.add((node, None))
        try:
            values = dict.fromkeys(self._values(module, node))
        finally:
            self._active.discard((node, None))
        return tuple(values) if len(values) <= 16 else ()

    def numbers(self, module: Module, node: ast.AST | None) -> tuple[ConstantValue, ...]:
        """All possible values if all are integers; empty otherwise."""
        values = self.values(module, node)
        if all(
            isinstance(value.value, int) and not isinstance(value.value, bool) for value in values
        ):
            return values
        return ()

    def bindings(self, module: Module, node: ast.Name) -> list[Binding]:
        """The bindings of a name in the innermost scope that binds it."""
        bound = self._bindings(module)
        for scope in self._scopes(module, node):
            bindings = bound.get((scope, node.id))
            if bindings:
                return bindings
        return []

    def assigned_values(self, module: Module, node: ast.AST) -> list[ast.expr | None]:
        """The expressions assigned to a name or an attribute of `self`; None if unknown."""
        bindings: list[Binding] = []
        if isinstance(node, ast.Name):
            bindings = self.bindings(module, node)
        elif isinstance(node, ast.Attribute) and dotted(node.value) in ("self", "cls"):
            around = module.enclosing_class(node)
            if around is not None:
                bindings = self._bindings(module).get((around, f"self.{node.attr}"), [])
        return [None if binding.is_element else binding.value for binding in bindings]

    # Expressions -------------------------------------------------------------------------------

    def _values(self, module: Module, node: ast.AST) -> Iterable[ConstantValue]:
        """Evaluate literals here and other expressions by their `EVALUATORS`."""
        match node:
            case ast.Constant(value=bytes(raw)):
                return (ConstantValue(raw.decode("utf-8", "replace")),)
            case ast.Constant(value=str() | int() | float() | None as value):
                return (ConstantValue(value),)
            case ast.List(elts=several) | ast.Tuple(elts=several) | ast.Set(elts=several):
                return self._any_of(module, several)
            case ast.Starred(value=value) | ast.NamedExpr(value=value) | ast.Await(value=value):
                return self.values(module, value)
            case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element):
                return self.values(module, element)
        kind = EVALUATORS.get(type(node))
        return () if kind is None else kind(self, module, node)

    def _formatted(self, module: Module, node: ast.FormattedValue) -> list[ConstantValue]:
        is_plain = node.format_spec is None and node.conversion == -1
        return [as_text(value) for value in self.values(module, node.value)] if is_plain else []

    def _negative(self, module: Module, node: ast.UnaryOp) -> list[ConstantValue]:
        values = self.values(module, node.operand)
        return [
            replace(value, value=-value.value)
            for value in values
            if isinstance(node.op, ast.USub) and isinstance(value.value, (int, float))
        ]

    def _any_of(self, module: Module, nodes: list[ast.expr]) -> list[ConstantValue]:
        alternatives = [self.values(module, node) for node in nodes]
        flat = [value for values in alternatives for value in values]
        return flat if all(alternatives) else [replace(value, is_certain=False) for value in flat]

    def _first_true(self, module: Module, node: ast.BoolOp) -> list[ConstantValue]:
        operands = node.values if isinstance(node.op, ast.Or) else []
        results: list[ConstantValue] = []
        for number, operand in enumerate(operands):
            values = self.values(module, operand)
            if not values:
                rest = self._any_of(module, operands[number + 1 :])
                return [replace(other, is_certain=False) for other in [*results, *rest]]
            results += [value for value in values if value.value or not value.is_complete]
            if all(value.value for value in values) and all(value.is_certain for value in values):
                break
            if number == len(operands) - 1:
                results += [value for value in values if not value.value]
        return results

    def _joined(self, module: Module, node: ast.JoinedStr) -> list[ConstantValue]:
        values = [ConstantValue("")]
        for part in node.values:
            values = self._pairs(values, list(self.values(module, part)), join_texts)
        return [value for value in values if value.text]

    def _pairs(
        self,
        lefts: list[ConstantValue],
        rights: list[ConstantValue],
        join: Callable[[ConstantValue, ConstantValue], ConstantValue | None],
    ) -> list[ConstantValue]:
        """Join all pairs; if the right value is unknown, the left one is a prefix."""
        if not lefts:
            return []
        if not rights:
            rights = [UNKNOWN]
        if len(lefts) * len(rights) > 16:
            return []
        pairs = [join(first, other) for first in lefts for other in rights]
        return [value for value in pairs if value is not None]

    def _operation(self, module: Module, node: ast.BinOp) -> list[ConstantValue]:
        left, right = list(self.values(module, node.left)), list(self.values(module, node.right))
        if left and all(isinstance(value.value, str) for value in left):
            if isinstance(node.op, ast.Add):
                return self._pairs(left, right, join_texts)
            if isinstance(node.op, ast.Div):
                return self._pairs(left, right, join_paths)
            if isinstance(node.op, ast.Mod):
                return [truncated_at(value, "%") for value in left]
            return []
        return self._pairs(left, right, arithmetic(node.op)) if left and right else []

    # Names ------------------------------------------------------------------------------------

    def _scopes(self, module: Module, node: ast.AST) -> Iterator[ast.AST]:
        nearest = True
        for ancestor in module.ancestors(node):
            if isinstance(ancestor, SCOPES):
                if not isinstance(ancestor, ast.ClassDef) or nearest:
                    yield ancestor
                nearest = False

    def _named_value(self, module: Module, node: ast.Name) -> list[ConstantValue]:
        if node.id == "__file__":
            return [ConstantValue("/", is_complete=False)]
        bindings = self.bindings(module, node)
        if bindings:
            return self._bound_values(module, bindings)
        name = module.names.of(node)
        return self._constant(name) if name is not None else []

    def _bound_values(self, module: Module, bindings: list[Binding]) -> list[ConstantValue]:
        values = [self._binding(module, binding) for binding in bindings]
        flat = [value for group in values for value in group]
        return flat if all(values) else [replace(value, is_certain=False) for value in flat]

    def _binding(self, module: Module, binding: Binding) -> list[ConstantValue]:
        if binding.parameter is not None:
            return self._parameter(module, binding.parameter)
        return list(self.values(module, binding.value)) if binding.value is not None else []

    def _constant(self, name: str) -> list[ConstantValue]:
        """A constant of another module."""
        module_name, _, last = name.rpartition(".")
        module = self.project.modules.get(module_name)
        if module is None:
            return []
        bindings = self._bindings(module).get((module.tree, last))
        if bindings:
            return self._bound_values(module, bindings)
        imported = module.names.imports.get(last)
        return self._constant(imported) if imported is not None and imported != name else []

    def _parameter(self, module: Module, node: ast.arg) -> list[ConstantValue]:
        function = module.parents[module.parents[node]]
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return []
        option = function_options(module, function).get(node.arg)
        if option is not None:
            return self._option(option)
        default = default_of(function, node.arg)
        results: list[ConstantValue] = []
        calls, all_known = self.callers.calls_of(module, function)
        is_method = isinstance(module.parents.get(function), ast.ClassDef)
        for where, call in calls:
            value = argument_of(function, call, node.arg, is_method)
            if value is not None:
                values = list(self.values(where, value))
            else:
                values = list(self.values(module, default))
            if not values:
                all_known = False
            results += values
        if not calls:
            all_known, results = False, list(self.values(module, default))
        return results if all_known else [replace(value, is_certain=False) for value in results]

    # Attributes, items, options ---------------------------------------------------------------

    @cached_property
    def _options(self) -> dict[str, list[Option]]:
        options: dict[str, list[Option]] = defaultdict(list)
        for module in self.project:
            for name, option in declared(module).items():
                options[name].append(option)
        return options

    def _option(self, option: Option) -> list[ConstantValue]:
        values = self.values(option.module, option.default)
        return [replace(value, is_certain=False, option=option.title) for value in values]

    def _attribute(self, module: Module, node: ast.Attribute) -> list[ConstantValue]:
        name = module.names.of(node)
        if name is not None and (values := self._constant(name)):
            return values
        owner = node.value
        if dotted(owner) in ("self", "cls"):
            around = module.enclosing_class(node)
            return [] if around is None else self._member(module, around, node.attr)
        if isinstance(owner, ast.Name) and (values := self._of_object(module, owner, node.attr)):
            return values
        base = dotted(owner.func if isinstance(owner, ast.Call) else owner)
        is_flag = name is None or name.startswith(("absl.", "tensorflow.compat.v1."))
        if base is not None and is_flag and node.attr in self._options:
            options = self._options[node.attr]
            return [value for option in options for value in self._option(option)]
        if node.attr in ("parent", "name", "path"):
            return _incomplete(self.values(module, owner))
        return []

    def _of_object(self, module: Module, owner: ast.Name, name: str) -> list[ConstantValue]:
        """An attribute of an instance of the project's class, or of a namespace object."""
        bindings = self.bindings(module, owner)
        if len(bindings) == 1 and isinstance(bindings[0].value, ast.Call):
            call = bindings[0].value
            value = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
            if value is not None:
                return list(self.values(module, value))
            owner_class = class_of(self.project, module, call.func)
        else:
            owner_class = None if bindings else class_of(self.project, module, owner)
        return [] if owner_class is None else self._member(*owner_class, name)

    def _member(self, module: Module, owner: ast.ClassDef, name: str) -> list[ConstantValue]:
        bindings = [*self._bindings(module).get((owner, f"self.{name}"), ())]
        bindings += self._bindings(module).get((owner, name), ())
        return self._bound_values(module, bindings)

    def _item(self, module: Module, node: ast.Subscript) -> list[ConstantValue]:
        if module.names.of(node.value) == "os.environ":
            return self._environment(module, node.slice, None)
        owner = node.value
        bindings = self.bindings(module, owner) if isinstance(owner, ast.Name) else []
        values = [binding.value for binding in bindings] if bindings else [owner]
        if len(values) == 1 and isinstance(values[0], ast.Dict):
            for key, value in zip(values[0].keys, values[0].values, strict=True):
                if key is not None and ast.dump(key) == ast.dump(node.slice):
                    return list(self.values(module, value))
            return []
        results = self.values(module, owner)
        return (
            [value for value in results if isinstance(value.value, str)] if len(values) == 1 else []
        )

    def _environment(
        self, module: Module, name: ast.expr, default: ast.expr | None
    ) -> list[ConstantValue]:
        text = next((value.text for value in self.values(module, name)), "")
        if text in ENVIRONMENT:
            return [ConstantValue(ENVIRONMENT[text], is_complete=False)]
        values = self.values(module, default)
        return [replace(value, is_certain=False, option=text) for value in values]

    # Calls ------------------------------------------------------------------------------------

    def _call(self, module: Module, node: ast.Call) -> Iterable[ConstantValue]:
        name = module.names.of(node.func)
        if name is None and isinstance(node.func, ast.Name):
            name = node.func.id
        first = node.args[0] if node.args else None
        if name in LOCAL_PATHS:
            return (ConstantValue(LOCAL_PATHS[name], is_complete=False),)
        if name in ("os.environ.get", "os.getenv", "os.environ.setdefault") and first is not None:
            default = node.args[1] if len(node.args) > 1 else None
            return self._environment(module, first, default)
        if name in JOINS:
            return self._path(module, node.args)
        if name in RETURNS_ARGUMENT and first is not None:
            values = self.values(module, first)
            return values if name in VALUE_PRESERVING else _incomplete(values)
        if name in ("int", "float") and first is not None:
            kind = int if name == "int" else float
            return [
                value
                for value in (cast(value, kind) for value in self.values(module, first))
                if value
            ]
        if name == "os.path.dirname" and first is not None:
            return _incomplete(self.values(module, first))
        if isinstance(node.func, ast.Attribute):
            if node.func.attr == "joinpath":
                return self._path(module, [node.func.value, *node.args])
            if node.func.attr == "get" and first is not None:
                item = ast.Subscript(node.func.value, first, ast.Load())
                return self._item(module, item)
            if node.func.attr in RETURNS_OBJECT:
                values = self.values(module, node.func.value)
                if node.func.attr in VALUE_PRESERVING:
                    return values
                is_below = node.func.attr in LISTS_FOLDER
                return [
                    path_below(value) if is_below else truncated_at(value, "{") for value in values
                ]
        return self._returned(module, node)

    def _path(self, module: Module, parts: list[ast.expr]) -> list[ConstantValue]:
        values = list(self.values(module, parts[0])) if parts else [ConstantValue(".")]
        for part in parts[1:]:
            values = self._pairs(values, list(self.values(module, part)), join_paths)
        return values

    def _returned(self, module: Module, node: ast.Call) -> list[ConstantValue]:
        """The return values of a project's function."""
        definition = function_of(self.project, module, node.func)
        if definition is None or isinstance(definition[1], ast.Lambda):
            return []
        returned = [
            statement.value
            for statement in returns_of(definition[1])
            if statement.value is not None
        ]
        return self._any_of(definition[0], returned)

    # Bindings ---------------------------------------------------------------------------------

    def _bindings(self, module: Module) -> dict[tuple[ast.AST, str], list[Binding]]:
        if module not in self._bound:
            self._bound[module] = bindings_of(module)
        return self._bound[module]


def _incomplete(values: Iterable[ConstantValue]) -> list[ConstantValue]:
    return [replace(value, is_complete=False) for value in values]


EVALUATORS: dict[type[ast.AST], Callable[[Constants, Module, Any], Iterable[ConstantValue]]] = {
    ast.JoinedStr: Constants._joined,
    ast.FormattedValue: Constants._formatted,
    ast.Name: Constants._named_value,
    ast.Attribute: Constants._attribute,
    ast.BinOp: Constants._operation,
    ast.UnaryOp: Constants._negative,
    ast.IfExp: lambda self, module, node: self._any_of(module, [node.body, node.orelse]),
    ast.BoolOp: Constants._first_true,
    ast.Subscript: Constants._item,
    ast.Call: Constants._call,
}
