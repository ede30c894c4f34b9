"""The values of expressions in host code: the code that runs once, in Python, around the steps.

Host code is evaluated on demand and without its order: a name has the values of all its bindings,
a parameter those that any call passes, and a call those that the function returns. Options
(argparse, absl, click, Typer) and environment variables have their defaults.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from tpuctl.preflight.analysis.program.bindings import Binding, bindings_of
from tpuctl.preflight.analysis.program.callers import calls_of
from tpuctl.preflight.analysis.program.functions import class_of, method_of
from tpuctl.preflight.analysis.program.script_options import Option, declared, function_options
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import (
    FUNCTIONS,
    SCOPES,
    Function,
    argument_of,
    default_of,
    dotted,
    returns_of,
)
from tpuctl.preflight.analysis.values.abstract_values import (
    OBJECT,
    STATIC,
    UNKNOWN,
    Closure,
    Kind,
    Scope,
    Value,
    join,
)
from tpuctl.preflight.analysis.values.constants import Constant, Constants, alternatives, incomplete
from tpuctl.preflight.analysis.values.evaluator import Evaluator, is_self

MAX_DEPTH = 40  # nested evaluations; each takes up to 12 of the 1,000 frames of Python's stack
MAX_VALUES = 16  # bindings, calls and returns that are considered
NUMBERS_AND_TEXTS = {"int", "bool", "float", "str"}
FLAG_MODULES = ("absl.", "tensorflow.compat.v1.")
PATH_PARTS = {"parent", "name", "path"}


class HostCode(Evaluator):
    """Evaluates the host code of one project."""

    @classmethod
    def of(cls, project: Project) -> HostCode:
        """The instance of a project, shared by all rules."""
        host = project.cache.get(cls)
        if not isinstance(host, HostCode):
            host = project.cache[cls] = cls(project)
        return host

    def __init__(self, project: Project) -> None:
        super().__init__(project)
        # By scope and name, class and attribute, or function and "return".
        self._values: dict[tuple[ast.AST, str], Value] = {}
        self._bindings: dict[Module, dict[tuple[ast.AST, str], list[Binding]]] = {}
        self._depth = 0

    def evaluate(self, module: Module, node: ast.expr | None) -> Value:
        """The value of an expression."""
        return UNKNOWN if node is None else self.value(node, self.scope(module, node))

    def constants(self, module: Module, node: ast.expr | None) -> Constants:
        """All values that an expression, or an element of it, may have; empty if unknown."""
        return self.evaluate(module, node).all_constants

    def numbers(self, module: Module, node: ast.expr | None) -> Constants:
        """The same if all values are integers; empty otherwise."""
        constants = self.constants(module, node)
        return constants if all(type(constant.value) is int for constant in constants) else ()

    def number(self, module: Module, node: ast.expr | None) -> int | None:
        """The integer that an expression certainly is; None if there is no single one."""
        constants = self.numbers(module, node)
        is_known = len(constants) == 1 and constants[0].is_certain
        return constants[0].value if is_known and isinstance(constants[0].value, int) else None

    def bindings(self, module: Module, node: ast.Name) -> list[Binding]:
        """The bindings of a name in the innermost scope that binds it."""
        bindings = self._bindings_of(module)
        scope: ast.AST | None = _scope_around(module, node)
        while scope is not None:
            if (scope, node.id) in bindings:
                return bindings[scope, node.id]
            scope = _outer_scope(module, scope)
        return []

    def assigned_values(self, module: Module, node: ast.AST) -> list[ast.expr | None]:
        """The expressions assigned to a name or an attribute of `self`; None if unknown."""
        bindings: list[Binding] = []
        if isinstance(node, ast.Name):
            bindings = self.bindings(module, node)
        elif isinstance(node, ast.Attribute) and is_self(node.value):
            owner = module.enclosing_class(node)
            if owner is not None:
                bindings = self._bindings_of(module).get((owner, f"self.{node.attr}"), [])
        return [binding.value if binding.is_plain else None for binding in bindings]

    def scope(self, module: Module, node: ast.AST) -> HostScope:
        """The names around a node."""
        owner = module.enclosing_class(node)
        around = _scope_around(module, node)
        return HostScope(self, module, around, (module, owner) if owner is not None else None)

    def outer_scope(self, module: Module, function: Function) -> HostScope | None:
        """The names around a function that it can read, if they are not global."""
        around = module.enclosing_function(function)
        return None if around is None else HostScope(self, module, around)

    # Expressions ------------------------------------------------------------------------------

    def value(self, node: ast.expr, scope: Scope) -> Value:
        if self._depth >= MAX_DEPTH:
            return UNKNOWN
        self._depth += 1
        try:
            return super().value(node, scope)
        finally:
            self._depth -= 1

    def _of_name(self, node: ast.Name, scope: Scope) -> Value:
        if node.id == "__file__":
            return STATIC.holding((Constant("/", is_complete=False),))
        return super()._of_name(node, scope)

    def _of_attribute(self, node: ast.Attribute, scope: Scope) -> Value:
        value = super()._of_attribute(node, scope)
        if value.all_constants or is_self(node.value):
            return value
        name, owner = scope.module.names.of(node), node.value
        is_flag = name is None or name.startswith(FLAG_MODULES)
        if is_flag and dotted(owner.func if isinstance(owner, ast.Call) else owner) is not None:
            options = self._options.get(node.attr, ())
            if options:
                return value.holding(alternatives(map(self._default, options)))
        if node.attr in PATH_PARTS:
            return value.holding(incomplete(self.value(owner, scope).all_constants))
        return value

    @cached_property
    def _options(self) -> dict[str, list[Option]]:
        options: dict[str, list[Option]] = defaultdict(list)
        for module in self.project:
            for name, option in declared(module).items():
                options[name].append(option)
        return options

    def _default(self, option: Option) -> Constants:
        """The default of an option, which callers of the script may change."""
        return tuple(
            replace(constant, is_certain=False, option=option.title)
            for constant in self.constants(option.module, option.default)
        )

    # Names ------------------------------------------------------------------------------------

    def _once(self, key: tuple[ast.AST, str], evaluate: Callable[[], Value]) -> Value:
        """A value that is evaluated once; UNKNOWN while it is evaluated."""
        if key not in self._values:
            self._values[key] = UNKNOWN
            self._values[key] = evaluate()
        return self._values[key]

    def _bindings_of(self, module: Module) -> dict[tuple[ast.AST, str], list[Binding]]:
        if module not in self._bindings:
            self._bindings[module] = bindings_of(module)
        return self._bindings[module]

    def global_value(self, module: Module, name: str) -> Value:
        value = self.bound_value(module, module.tree, name)
        if value is not None:
            return value
        imported = module.names.imports.get(name)
        if imported is None:
            return UNKNOWN
        return self._once((module.tree, f"import {name}"), lambda: self.imported(imported))

    def imported(self, name: str) -> Value:
        definition = self.project.find(name)
        if definition is not None:
            return self._defined(*definition)
        where, _, last = name.rpartition(".")
        module = self.project.modules.get(where)
        if module is not None:
            return self.global_value(module, last)
        return STATIC if last.isupper() else Value(Kind.OBJECT, name=name)

    def bound_value(self, module: Module, scope: ast.AST, name: str) -> Value | None:
        """The value of a name that a function, class or module binds; None if it does not."""
        bindings = self._bindings_of(module).get((scope, name))
        if not bindings:
            return None
        return self._once((scope, name), lambda: self._bound(module, bindings))

    def _bound(self, module: Module, bindings: list[Binding]) -> Value:
        values = [self._binding(module, binding) for binding in bindings[-MAX_VALUES:]]
        return _one_of(values, len(bindings))

    def _binding(self, module: Module, binding: Binding) -> Value:
        if binding.parameter is not None:
            return self._parameter(module, binding.parameter)
        if binding.definition is not None:
            return self._defined(module, binding.definition)
        value = self.evaluate(module, binding.value)
        if binding.is_element:
            value = value.inner
        for number in binding.items:
            value = value.item(number)
        if value.kind is Kind.KNOWN:
            # A tensor created on the host is an argument of the program.
            value = replace(value, kind=Kind.TENSOR)
        if binding.is_updated:
            return replace(value.opaque, is_number=value.is_number)
        return value

    def _defined(self, module: Module, node: ast.AST) -> Value:
        """The value of a function or class."""
        if isinstance(node, ast.ClassDef):
            return Value(Kind.OBJECT, owner=(module, node), is_class=True)
        assert isinstance(node, FUNCTIONS)
        owner = module.enclosing_class(node)
        outer = self.outer_scope(module, node)
        closure = Closure(module, node, outer, (module, owner) if owner is not None else None)
        return Value(Kind.OBJECT, closure=closure)

    def _parameter(self, module: Module, node: ast.arg) -> Value:
        """The values that calls pass for a parameter."""
        function = module.parents[module.parents[node]]
        assert isinstance(function, FUNCTIONS)
        is_method = isinstance(module.parents.get(function), ast.ClassDef)
        if is_method and node in function.args.args[:1]:
            return UNKNOWN
        option = function_options(module, function).get(node.arg)
        if option is not None:
            return UNKNOWN.holding(self._default(option))
        default = default_of(function, node.arg)
        calls, is_complete = calls_of(self.project, module, function)
        values = []
        for where, call in calls[:MAX_VALUES]:
            passed = argument_of(function, call, node.arg, is_method)
            values.append(
                self.evaluate(module, default) if passed is None else self.evaluate(where, passed)
            )
        if not calls:
            values.append(self.evaluate(module, default))
        if not (calls and is_complete):
            values.append(UNKNOWN)
        value = _one_of(values, len(calls))
        if is_method and getattr(function, "name", "") == "__init__":
            # Objects are also created in traced code, where other kinds of values are passed.
            value = UNKNOWN.holding(value.all_constants)
        annotation = "" if node.annotation is None else ast.unparse(node.annotation)
        return replace(value, kind=Kind.STATIC) if annotation in NUMBERS_AND_TEXTS else value

    # Functions and classes --------------------------------------------------------------------

    def call(self, closure: Closure, arguments: list[Value], keywords: dict[str, Value]) -> Value:
        return self._once((closure.node, "return"), lambda: self._returned(closure))

    def _returned(self, closure: Closure) -> Value:
        node = closure.node
        if isinstance(node, ast.Lambda):
            return self.evaluate(closure.module, node.body)
        returned = [statement.value for statement in returns_of(node) if statement.value]
        values = [self.evaluate(closure.module, value) for value in returned[:MAX_VALUES]]
        return _one_of(values, len(returned))

    def member(self, module: Module, owner: ast.ClassDef, name: str) -> Value:
        return self._once((owner, f"self.{name}"), lambda: self._member(module, owner, name))

    def _member(self, module: Module, owner: ast.ClassDef, name: str) -> Value:
        method = method_of(self.project, module, owner, name)
        if method is not None:
            where, node = method
            decorators = {dotted(part) for part in getattr(node, "decorator_list", [])}
            if "property" in decorators:
                return UNKNOWN
            bound = () if "staticmethod" in decorators else (OBJECT,)
            return Value(Kind.OBJECT, closure=Closure(where, node, None, (module, owner), bound))
        bindings = self._bindings_of(module)
        assigned = [*bindings.get((owner, name), ()), *bindings.get((owner, f"self.{name}"), ())]
        if assigned:
            return self._bound(module, assigned)
        for base in owner.bases:
            definition = class_of(self.project, module, base)
            if definition is not None and definition[1] is not owner:
                return self.member(*definition, name)
        return UNKNOWN


class HostScope(Scope):
    """The names of a function, class or module that runs on the host."""

    def __init__(
        self,
        host: HostCode,
        module: Module,
        node: ast.AST,
        owner: tuple[Module, ast.ClassDef] | None = None,
    ) -> None:
        super().__init__(module, node, owner=owner)
        self.host = host

    def find(self, name: str) -> Value | None:
        """The value of a name that is not global; None if it is global or unknown."""
        scope: ast.AST | None = self.node
        while scope is not None and not isinstance(scope, ast.Module):
            value = self.host.bound_value(self.module, scope, name)
            if value is not None:
                return value
            scope = _outer_scope(self.module, scope)
        return None


def _one_of(values: list[Value], count: int) -> Value:
    """One of several values, of which at most MAX_VALUES were evaluated."""
    value = join(*values)
    return value if count <= MAX_VALUES else value.opaque


def _scope_around(module: Module, node: ast.AST) -> ast.AST:
    scope: ast.AST = module.enclosing(node, SCOPES) or module.tree
    return scope


def _outer_scope(module: Module, scope: ast.AST) -> ast.AST | None:
    """The scope whose names a scope can read; None for a module."""
    while not isinstance(scope, ast.Module):
        scope = _scope_around(module, scope)
        if not isinstance(scope, ast.ClassDef):
            return scope
    return None
