"""What names and attributes are that traced code takes from plain Python around it."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections import defaultdict
from dataclasses import replace

from tpuctl.preflight.analysis.abstract_values import (
    OBJECT,
    STATIC,
    UNKNOWN,
    Closure,
    Kind,
    Scope,
    Value,
    joined,
)
from tpuctl.preflight.analysis.functions import (
    argument,
    class_of,
    function_of,
    method_of,
    own_nodes,
)
from tpuctl.preflight.analysis.names import dotted
from tpuctl.preflight.analysis.source import Function, Module, Project, parts_of

__all__ = ["FUNCTIONS", "TYPE", "Surroundings"]

TYPE = "type "  # begins the name of a class itself, not of an object of it
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Surroundings:
    """Evaluates what plain Python makes, in any order and only where it is asked for."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.values: dict[ast.AST, Value] = {}
        self.attributes: dict[tuple[ast.AST, str], Value] = {}
        self.hosts: dict[tuple[ast.AST, str], Value] = {}
        self.assigned: dict[ast.AST, dict[str, list[ast.AST]]] = {}
        self.called: dict[str, list[tuple[Module, ast.Call]]] | None = None
        self.heirs: dict[ast.AST, list[tuple[Module, ast.ClassDef]]] | None = None
        self.calling: dict[ast.AST, list[tuple[Module, ast.Call]]] = {}
        self.hosting = 0  # how deep in what plain Python runs
        self.members: dict[ast.AST, dict[str, list[tuple[ast.expr, ast.AST]]]] = {}

    @abstractmethod
    def value(self, node: ast.expr, scope: Scope) -> Value:
        """What an expression is."""

    def _imported(self, module: Module, node: ast.expr, name: str) -> Value:
        """A name of a library, or of another file of the project."""
        told = self.project.find(name)
        if told is not None:
            if isinstance(told[1], FUNCTIONS):
                return Value(Kind.OBJECT, closure=Closure(told[0], told[1]))
            assert isinstance(told[1], ast.ClassDef)
            return Value(Kind.OBJECT, name=TYPE + self._class_key(told[0], told[1]))
        where, _, last = name.rpartition(".")
        there = self.project.modules.get(where)
        if there is not None:
            return self.outside(there, ast.Name(last))
        return STATIC if last.isupper() else Value(Kind.OBJECT, name=name)

    def outside(self, module: Module, node: ast.Name) -> Value:
        """What a name is that a traced function takes from its file."""
        key = (module.tree, node.id)
        if key not in self.hosts:
            self.hosts[key] = UNKNOWN
            self.hosts[key] = self._outside(module, node)
        return self.hosts[key]

    def _outside(self, module: Module, node: ast.Name) -> Value:
        told = self._assigned(module, module.tree, node.id)
        if told is not None:
            return told
        name = module.names.known.get(node.id)
        return UNKNOWN if name is None else self._imported(module, node, name)

    def _assigned(self, module: Module, scope: ast.AST, name: str) -> Value | None:
        """What plain Python gives a name in a function or a file."""
        if scope not in self.assigned:
            self.assigned[scope] = _assignments(scope)
        found = self.assigned[scope].get(name)
        if found is None:
            return None
        made = []
        for one in found[-4:]:
            if isinstance(one, FUNCTIONS):
                around = self.host_scope(module, one)
                owner = module.class_around(one)
                closure = Closure(module, one, around, (module, owner) if owner else None)
                made.append(Value(Kind.OBJECT, closure=closure))
            elif isinstance(one, ast.ClassDef):
                made.append(Value(Kind.OBJECT, name=TYPE + self._class_key(module, one)))
            elif isinstance(one, ast.For):
                made.append(_captured(self.host_value(module, one.iter).inner))
            elif isinstance(one, ast.With):
                made.append(OBJECT)
            elif isinstance(one, ast.expr):
                made.append(_captured(self.host_value(module, one)))
            else:
                made.append(UNKNOWN)
        return joined(*made)

    def host_scope(self, module: Module, node: ast.AST) -> Scope | None:
        """The names of the functions around one, as plain Python leaves them."""
        around = module.function_around(node)
        return None if around is None else Host(self, module, around)

    def host_value(self, module: Module, node: ast.expr) -> Value:
        """What an expression outside of traced functions is."""
        around = module.function_around(node)
        scope = Scope(module, module.tree) if around is None else Host(self, module, around)
        return self.host(node, scope)

    def host(self, node: ast.expr, scope: Scope) -> Value:
        self.hosting += 1
        try:
            return self.value(node, scope)
        finally:
            self.hosting -= 1

    def host_result(self, closure: Closure) -> Value:
        """What a function that plain Python calls returns."""
        node = closure.node
        key = (node, "return")
        if key not in self.hosts:
            self.hosts[key] = UNKNOWN
            if isinstance(node, ast.Lambda):
                found: list[ast.expr] = [node.body]
            else:
                returns = (one for one in own_nodes(node) if isinstance(one, ast.Return))
                found = [one.value for one in returns if one.value is not None]
            scope = Host(self, closure.module, node, closure.owner)
            self.hosts[key] = joined(*(self.host(one, scope) for one in found[:4]))
        return self.hosts[key]

    # Classes ----------------------------------------------------------------------------------

    def _class_key(self, module: Module, node: ast.ClassDef) -> str:
        key = f"{module.name}:{node.name}"
        self.project.known[("class", key)] = (module, node)
        return key

    def _owned(self, value: Value) -> tuple[Module, ast.ClassDef] | None:
        if value.kind is not Kind.OBJECT or not value.name:
            return None
        key = ("class", value.name.removeprefix(TYPE))
        found: tuple[Module, ast.ClassDef] | None = self.project.known.get(key)
        return found

    def member(self, module: Module, owner: ast.ClassDef, name: str) -> Value:
        """What `self.name` is in the methods of a class."""
        key = (owner, name)
        if key not in self.attributes:
            self.attributes[key] = UNKNOWN
            self.attributes[key] = self._member(module, owner, name)
        return self.attributes[key]

    def _member(self, module: Module, owner: ast.ClassDef, name: str) -> Value:
        found = method_of(self.project, module, owner, name)
        if found is not None:
            where, node = found
            if any(dotted(one) == "property" for one in getattr(node, "decorator_list", [])):
                return UNKNOWN
            is_bare = any(
                dotted(one) == "staticmethod" for one in getattr(node, "decorator_list", [])
            )
            bound = () if is_bare else (OBJECT,)
            return Value(Kind.OBJECT, closure=Closure(where, node, None, (module, owner), bound))
        if owner not in self.members:
            self.members[owner] = _members(owner)
        made = []
        for value, function in self.members[owner].get(name, [])[:4]:
            scope = Host(self, module, function, (module, owner))
            made.append(_captured(self.host(value, scope)))
        if made:
            return joined(*made)
        for base in owner.bases:
            told = class_of(self.project, module, base)
            if told is not None and told[1] is not owner:
                return self.member(*told, name)
        return UNKNOWN

    def derived(self, owner: ast.ClassDef) -> list[tuple[Module, ast.ClassDef]]:
        """The project's classes that derive from one, at once or by others."""
        if self.heirs is None:
            self.heirs = defaultdict(list)
            for module in self.project:
                for one in module.classes.values():
                    for base in one.bases:
                        told = class_of(self.project, module, base)
                        if told is not None and told[1] is not one:
                            self.heirs[told[1]].append((module, one))
        found: list[tuple[Module, ast.ClassDef]] = []
        waiting = list(self.heirs.get(owner, []))
        while waiting:
            one_of = waiting.pop()
            if one_of not in found and one_of[1] is not owner:
                found.append(one_of)
                waiting.extend(self.heirs.get(one_of[1], []))
        return found

    # Who calls --------------------------------------------------------------------------------

    def host_parameter(self, node: Function, name: str) -> Value:
        """What a function of plain Python is given by those who call it."""
        parameters = _all_arguments(node)
        place = [one.arg for one in parameters].index(name)
        annotation = parameters[place].annotation
        if annotation is not None and ast.unparse(annotation) in ("int", "bool", "float", "str"):
            return STATIC
        if parameters[0].arg == "self":
            place -= 1
        made = []
        for module, call in self.callers(node)[:4]:
            given = argument(call, place, name)
            if given is not None and not isinstance(given, ast.Starred):
                made.append(self.host_value(module, given))
        return joined(*made)

    def callers(self, node: Function) -> list[tuple[Module, ast.Call]]:
        """Calls of a function by plain Python."""
        if self.called is None:
            self.called = defaultdict(list)
            for module in self.project:
                for call in module.calls:
                    path = dotted(call.func)
                    if path is not None:
                        self.called[path.rpartition(".")[2]].append((module, call))
        name = getattr(node, "name", "")
        if name not in self.called or not name:
            return []
        if node not in self.calling:
            self.calling[node] = [
                (module, call)
                for module, call in self.called[name]
                if self._is_call_of(module, call, node)
            ]
        return self.calling[node]

    def _is_call_of(self, module: Module, call: ast.Call, node: Function) -> bool:
        told = function_of(self.project, module, call.func)
        if told is None and isinstance(call.func, ast.Attribute):
            # A method of an object: its name is all there is to go by.
            return (
                module.names.of(call.func) is None
                and node.args.args[:1] != []
                and (node.args.args[0].arg == "self")
            )
        return told is not None and told[1] is node


class Host(Scope):
    """The names of a function that plain Python runs."""

    def __init__(
        self,
        around: Surroundings,
        module: Module,
        node: ast.AST,
        owner: tuple[Module, ast.ClassDef] | None = None,
    ) -> None:
        super().__init__(module, node, owner=owner)
        self.outer = around

    def find(self, name: str) -> Value | None:
        scope: ast.AST | None = self.node
        while isinstance(scope, FUNCTIONS):
            key = (scope, name)
            hosts = self.outer.hosts
            if key not in hosts:
                hosts[key] = UNKNOWN
                found = self.outer._assigned(self.module, scope, name)
                if found is None and name in {one.arg for one in _all_arguments(scope)}:
                    found = self.outer.host_parameter(scope, name)
                if found is None:
                    del hosts[key]
                else:
                    hosts[key] = found
            known = hosts.get(key)
            if known is not None:
                return known
            scope = self.module.function_around(scope)
        return self.names.get(name)


def _all_arguments(node: Function) -> list[ast.arg]:
    one = node.args
    extra = [part for part in (one.vararg, one.kwarg) if part is not None]
    return [*one.posonlyargs, *one.args, *one.kwonlyargs, *extra]


def _assignments(scope: ast.AST) -> dict[str, list[ast.AST]]:
    """What a scope's names are assigned, without those of functions in it."""
    found: dict[str, list[ast.AST]] = defaultdict(list)
    body = getattr(scope, "body", [])
    waiting: list[ast.AST] = list(body) if isinstance(body, list) else []
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found[one.name].append(one)
            continue
        if isinstance(one, ast.Assign):
            for target in one.targets:
                _note(found, target, one.value)
        elif isinstance(one, (ast.AnnAssign, ast.AugAssign)) and one.value is not None:
            _note(found, one.target, one.value)
        elif isinstance(one, ast.For):
            for part in ast.walk(one.target):
                if isinstance(part, ast.Name):
                    found[part.id].append(one)
        elif isinstance(one, ast.With):
            for item in one.items:
                if isinstance(item.optional_vars, ast.Name):
                    found[item.optional_vars.id].append(item.context_expr)
        waiting.extend(part for part in ast.iter_child_nodes(one) if isinstance(part, ast.stmt))
        waiting.extend(part for part in getattr(one, "handlers", []))
    return found


def _note(found: dict[str, list[ast.AST]], target: ast.expr, value: ast.expr) -> None:
    if isinstance(target, ast.Name):
        found[target.id].append(value)
    elif isinstance(target, (ast.Tuple, ast.List)):
        parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
        for place, one in enumerate(target.elts):
            if isinstance(one, ast.Name):
                same = len(parts) == len(target.elts)
                found[one.id].append(parts[place] if same else ast.Pass())


def _members(owner: ast.ClassDef) -> dict[str, list[tuple[ast.expr, ast.AST]]]:
    """What the methods of a class assign to `self`, and in which one."""
    found: dict[str, list[tuple[ast.expr, ast.AST]]] = defaultdict(list)
    for method in owner.body:
        if isinstance(method, ast.Assign):
            for target in method.targets:
                if isinstance(target, ast.Name):
                    found[target.id].append((method.value, owner))
        if not isinstance(method, ast.FunctionDef):
            continue
        waiting: list[ast.AST] = [method]
        for one in waiting:  # it grows
            waiting += parts_of(one)
            if isinstance(one, ast.Assign):
                for target in one.targets:
                    if isinstance(target, ast.Attribute) and dotted(target.value) == "self":
                        found[target.attr].append((one.value, method))
    return found


def _captured(value: Value) -> Value:
    """A tensor that plain Python made is an argument of the program; its value is not known."""
    return replace(value, kind=Kind.TENSOR) if value.kind is Kind.KNOWN else value
