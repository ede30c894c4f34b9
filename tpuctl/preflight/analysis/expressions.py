"""What an expression is, from what its parts are, in traced code and in plain Python around it."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections import defaultdict
from dataclasses import replace

from tpuctl.preflight.analysis.abstract_values import (
    OBJECT,
    STATIC,
    TENSOR,
    UNKNOWN,
    Closure,
    Kind,
    Scope,
    Value,
    container,
    joined,
)
from tpuctl.preflight.analysis.bindings import assignments_of, members_of
from tpuctl.preflight.analysis.functions import class_of, function_of, method_of
from tpuctl.preflight.analysis.library import attribute_of, method_result, result_of
from tpuctl.preflight.analysis.qualified_names import keras_name
from tpuctl.preflight.analysis.source import Module, Project
from tpuctl.preflight.analysis.syntax import (
    FUNCTIONS,
    Function,
    argument,
    dotted,
    own_nodes,
    parameters_of,
    several,
)
from tpuctl.preflight.analysis.tensorflow_calls import TRACE_ARGUMENTS
from tpuctl.preflight.analysis.traced import Traced, root_of

__all__ = ["Expressions", "carried"]

# Python's own: those whose result on a tensor is a tensor under autograph, or is none.
PLAIN = {"len", "isinstance", "hasattr", "str", "repr", "print", "type", "id", "callable",
         "bool", "getattr_static", "issubclass", "format", "any", "all", "super"}  # fmt: skip
PASSES = {"int", "float", "abs", "sum", "max", "min", "round", "pow", "divmod", "iter", "next",
          "reversed", "sorted", "list", "tuple", "set"}  # fmt: skip
TYPE = "type "  # begins the name of a class itself, not of an object of it
STRUCTURE = Value(Kind.TENSOR, is_structure=True)
NUMBERS = {"int", "float", "len", "round"}  # Python's own, unless autograph converts them


class Expressions:
    """Evaluates expressions to kinds: in traced code as it is looked through, in plain Python only
    where it is asked for. What is noted of one is what holds in all its contexts."""

    is_converted = True  # whether autograph converts what is looked at

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
    def call(self, closure: Closure, given: list[Value], named: dict[str, Value]) -> Value:
        """What a function of the project's own returns."""

    def callee(self, caller: Traced, one: Traced) -> Traced:
        """How a function is traced that another one defines or reaches."""
        own = root_of(one.module, one.node)
        return one if own is None else replace(own, is_root=False, is_reached=caller.is_reached)

    # Expressions ------------------------------------------------------------------------------

    def value(self, node: ast.expr, scope: Scope) -> Value:
        """What an expression is; noted for those who ask later."""
        made = self._value(node, scope)
        known = self.values.get(node)
        self.values[node] = made if known is None else joined(known, made)
        return made

    def _value(self, node: ast.expr, scope: Scope) -> Value:
        method = getattr(self, f"_of_{type(node).__name__.lower()}", None)
        if method is not None:
            made: Value = method(node, scope)
            return made
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.expr):
                self.value(part, scope)
        return STATIC

    def _of_name(self, node: ast.Name, scope: Scope) -> Value:
        found = scope.find(node.id)
        if found is not None:
            return found
        return self.outside(scope.module, node)

    def _of_constant(self, node: ast.Constant, _: Scope) -> Value:
        return replace(STATIC, is_boolean=isinstance(node.value, bool))

    def _of_attribute(self, node: ast.Attribute, scope: Scope) -> Value:
        name = scope.module.names.of(node)
        if name is not None and scope.find(name.partition(".")[0]) is None:
            return self._imported(scope.module, node, name)
        if isinstance(node.value, ast.Name) and node.value.id == "self" and scope.owner:
            self.values[node.value] = OBJECT
            return self.member(*scope.owner, node.attr)
        value = self.value(node.value, scope)
        if value.closure is not None and isinstance(value.closure.node, ast.Lambda):
            return UNKNOWN
        owned = self._owned(value)
        if owned is not None:
            return self.member(*owned, node.attr)
        return attribute_of(value, node.attr)

    def _of_call(self, node: ast.Call, scope: Scope) -> Value:
        given = [self.value(one, scope) for one in node.args]
        if any(isinstance(one, ast.Starred) for one in node.args):
            given = [one.inner if isinstance(part, ast.Starred) else one
                     for one, part in zip(given, node.args, strict=True)]  # fmt: skip
        named = {one.arg: self.value(one.value, scope) for one in node.keywords if one.arg}
        for one in node.keywords:
            if one.arg is None:
                self.value(one.value, scope)
        name = scope.module.names.of(node.func)
        if name is not None and scope.find(name.partition(".")[0]) is None:
            return self._library(node, name, given, named, scope)
        if isinstance(node.func, ast.Name):
            return self._plain_call(node, node.func, given, named, scope)
        if isinstance(node.func, ast.Attribute):
            return self._method_call(node, node.func, given, named, scope)
        return self._object_call(self.value(node.func, scope), given, named)

    def _library(
        self, node: ast.Call, name: str, given: list[Value], named: dict[str, Value], scope: Scope
    ) -> Value:
        told = self.project.find(name)
        if told is not None:
            return self._own(told[0], told[1], given, named)
        results = []
        for number in TRACE_ARGUMENTS.get(name, ()):
            for part in several(argument(node, number, "")):
                value = self.values.get(part, UNKNOWN)
                if value.closure is not None:
                    results.append(self._traced_call(name, value.closure, given, named))
        if results and name in ("tensorflow.cond", "tensorflow.switch_case", "tensorflow.case"):
            return _symbolic(joined(*results))
        if name in ("tensorflow.function", "functools.partial") and given and given[0].closure:
            bound = tuple(given[1:])
            closure = replace(given[0].closure, bound=given[0].closure.bound + bound)
            return replace(given[0], closure=closure)
        if name in TRACE_ARGUMENTS and given and given[0].closure and len(given) == 1:
            return given[0]
        return result_of(name, given, named, node)

    def _traced_call(
        self, name: str, closure: Closure, given: list[Value], named: dict[str, Value]
    ) -> Value:
        """A function that is handed to `tf.cond`, `tf.map_fn` and the like."""
        if name in ("tensorflow.cond", "tensorflow.case", "tensorflow.switch_case"):
            return self.call(closure, [], {})
        if name == "tensorflow.nest.map_structure":
            return self.call(
                closure, [one.inner if one.is_container else one for one in given[1:]], {}
            )
        start = given[2] if name == "tensorflow.while_loop" and len(given) > 2 else None
        if start is not None and start.items is not None:
            return self.call(closure, [carried(one) for one in start.items], {})
        count = len(closure.node.args.args)
        return self.call(closure, [STRUCTURE if start is None else TENSOR] * count, {})

    def _plain_call(
        self,
        node: ast.Call,
        func: ast.Name,
        given: list[Value],
        named: dict[str, Value],
        scope: Scope,
    ) -> Value:
        value = scope.find(func.id)
        if value is None and func.id in PLAIN | PASSES | {
            "range",
            "enumerate",
            "zip",
            "map",
            "dict",
        }:
            if func.id in NUMBERS and not self.is_converted:
                return STATIC
            return _builtin(func.id, given)
        if value is None:
            value = self.outside(scope.module, func)
        self.values[func] = value
        return self._object_call(value, given, named)

    def _method_call(
        self,
        node: ast.Call,
        func: ast.Attribute,
        given: list[Value],
        named: dict[str, Value],
        scope: Scope,
    ) -> Value:
        if isinstance(func.value, ast.Name) and func.value.id == "self" and scope.owner:
            value = self.member(*scope.owner, func.attr)
            self.values[func] = value
            if value.kind is Kind.UNKNOWN and func.attr in ("add_weight", "add_variable"):
                return TENSOR
            if value.kind is not Kind.UNKNOWN or value.closure is not None:
                return self._object_call(value, given, named)
            return _of_unknown([*given, *named.values()])
        owner = self.value(func.value, scope)
        owned = self._owned(owner)
        if owned is not None:
            return self._object_call(self.member(*owned, func.attr), given, named)
        if isinstance(func.value, ast.Call) and getattr(func.value.func, "id", "") == "super":
            return _of_unknown(given)
        if isinstance(func.value, ast.Name) and func.attr in ("append", "extend", "add"):
            if owner.is_container and given:
                scope.names[func.value.id] = container([owner.inner, given[0]])
            return STATIC
        return method_result(owner, func.attr, given)

    def _object_call(self, value: Value, given: list[Value], named: dict[str, Value]) -> Value:
        """Calling what a name or an attribute is."""
        if value.closure is not None:
            return self.call(value.closure, given, named)
        if value.name.startswith(TYPE):
            return Value(Kind.OBJECT, name=value.name.removeprefix(TYPE))
        owned = self._owned(value)
        if owned is not None:
            method = self.member(*owned, "call")
            if method.closure is None:
                method = self.member(*owned, "__call__")
            if method.closure is not None:
                return _symbolic(self.call(method.closure, given, named))
        if keras_name(value.name) is not None and ".losses." in value.name:
            return TENSOR
        if value.kind is Kind.STATIC:
            return STATIC
        return _of_unknown([*given, *named.values()])

    def _own(
        self, module: Module, node: ast.AST, given: list[Value], named: dict[str, Value]
    ) -> Value:
        if isinstance(node, ast.ClassDef):
            return Value(Kind.OBJECT, name=self._class_key(module, node))
        assert isinstance(node, FUNCTIONS)
        return self.call(Closure(module, node, None), given, named)

    def _of_subscript(self, node: ast.Subscript, scope: Scope) -> Value:
        value = self.value(node.value, scope)
        self.value(node.slice, scope)
        place = node.slice
        if isinstance(place, ast.UnaryOp) and isinstance(place.op, ast.USub):
            place = place.operand
        if value.items and isinstance(place, ast.Constant) and isinstance(place.value, int):
            number = place.value if place is node.slice else -place.value
            if -len(value.items) <= number < len(value.items):
                return value.items[number]
        if value.is_container:
            return value if isinstance(node.slice, ast.Slice) else value.inner
        if value.is_structure and isinstance(node.slice, ast.Tuple):
            return value.single
        return value

    def _of_slice(self, node: ast.Slice, scope: Scope) -> Value:
        parts = [one for one in (node.lower, node.upper, node.step) if one is not None]
        return joined(*(self.value(one, scope) for one in parts)) if parts else STATIC

    def _of_binop(self, node: ast.BinOp, scope: Scope) -> Value:
        left, right = self.value(node.left, scope), self.value(node.right, scope)
        is_text = isinstance(node.left, ast.JoinedStr) or (
            isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
        )
        if is_text and isinstance(node.op, ast.Mod):
            return STATIC
        return self.combined(left, right)

    def combined(self, left: Value, right: Value) -> Value:
        """What arithmetic of two gives."""
        if left.is_container and right.is_container:
            return container([left.inner, right.inner])
        if left.is_container and not right.is_symbolic:
            return left
        strong = left if left.kind >= right.kind else right
        if not strong.is_symbolic:
            return STATIC if strong.kind is Kind.STATIC else UNKNOWN
        is_boolean = left.is_boolean and right.is_boolean
        return Value(strong.kind, is_boolean=is_boolean)

    def _of_unaryop(self, node: ast.UnaryOp, scope: Scope) -> Value:
        value = self.value(node.operand, scope)
        if isinstance(node.op, ast.Not):
            return replace(value, is_boolean=True) if value.is_tensor else STATIC
        return value.single

    def _of_boolop(self, node: ast.BoolOp, scope: Scope) -> Value:
        return joined(*(self.value(one, scope) for one in node.values))

    def _of_compare(self, node: ast.Compare, scope: Scope) -> Value:
        parts = [self.value(one, scope) for one in (node.left, *node.comparators)]
        plain = (ast.Is, ast.IsNot, ast.In, ast.NotIn)
        if any(isinstance(one, plain) for one in node.ops):
            return STATIC
        if any(
            isinstance(one, ast.Constant) and (one.value is None or isinstance(one.value, str))
            for one in (node.left, *node.comparators)
        ):
            return STATIC
        strong = joined(*parts)
        if not strong.is_symbolic or strong.is_container:
            return UNKNOWN if strong.kind is Kind.UNKNOWN else STATIC
        return Value(strong.kind, is_boolean=True)

    def _of_ifexp(self, node: ast.IfExp, scope: Scope) -> Value:
        self.value(node.test, scope)
        return joined(self.value(node.body, scope), self.value(node.orelse, scope))

    def _of_tuple(self, node: ast.Tuple | ast.List, scope: Scope) -> Value:
        items = [self.value(one, scope) for one in node.elts]
        if any(isinstance(one, ast.Starred) for one in node.elts):
            return container([one.inner for one in items])
        return Value(Kind.STATIC, items=tuple(items)) if items else container([])

    _of_list = _of_tuple
    _of_set = _of_tuple

    def _of_dict(self, node: ast.Dict, scope: Scope) -> Value:
        for key in node.keys:
            if key is not None:
                self.value(key, scope)
        return container([self.value(one, scope) for one in node.values])

    def _of_starred(self, node: ast.Starred, scope: Scope) -> Value:
        return self.value(node.value, scope)

    def _of_namedexpr(self, node: ast.NamedExpr, scope: Scope) -> Value:
        value = self.value(node.value, scope)
        self.assign(node.target, value, scope)
        return value

    def _of_lambda(self, node: ast.Lambda, scope: Scope) -> Value:
        return Value(Kind.OBJECT, closure=Closure(scope.module, node, scope, scope.owner))

    def _of_listcomp(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, scope: Scope
    ) -> Value:
        return container([self.value(node.elt, self._comprehended(node.generators, scope))])

    _of_setcomp = _of_listcomp
    _of_generatorexp = _of_listcomp

    def _of_dictcomp(self, node: ast.DictComp, scope: Scope) -> Value:
        inner = self._comprehended(node.generators, scope)
        self.value(node.key, inner)
        return container([self.value(node.value, inner)])

    def _comprehended(self, generators: list[ast.comprehension], scope: Scope) -> Scope:
        inner = Scope(scope.module, scope.node, {}, scope, scope.owner)
        for one in generators:
            self.assign(one.target, self.value(one.iter, inner).inner, inner)
            for test in one.ifs:
                self.value(test, inner)
        return inner

    def assign(self, target: ast.expr, value: Value, scope: Scope) -> None:
        """Give names what they are assigned."""
        if isinstance(target, ast.Name):
            scope.names[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            items = value.items
            if items is None or len(items) != len(target.elts):
                items = (value.inner,) * len(target.elts)
            for one, item in zip(target.elts, items, strict=True):
                self.assign(one, item, scope)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, container([value.inner]), scope)
        elif isinstance(target, ast.Subscript):
            self.value(target.value, scope)
            self.value(target.slice, scope)

    # What plain Python makes ------------------------------------------------------------------

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
            self.assigned[scope] = assignments_of(scope)
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
            self.members[owner] = members_of(owner)
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
        parameters = parameters_of(node)
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
        around: Expressions,
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
                if found is None and name in {one.arg for one in parameters_of(scope)}:
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


def carried(value: Value) -> Value:
    return TENSOR if value.kind in (Kind.STATIC, Kind.KNOWN) else value


def _symbolic(value: Value) -> Value:
    return STRUCTURE if value.kind in (Kind.STATIC, Kind.UNKNOWN, Kind.OBJECT) else value


def _of_unknown(given: list[Value]) -> Value:
    """What something nobody knows returns: tensors for tensors, as layers do."""
    if any(one.is_symbolic or (one.is_container and one.inner.is_symbolic) for one in given):
        return STRUCTURE
    return UNKNOWN


def _builtin(name: str, given: list[Value]) -> Value:
    first = given[0] if given else STATIC
    if name == "range":
        is_tensor = any(one.is_tensor for one in given)
        return Value(max(one.kind for one in given)) if is_tensor else container([STATIC])
    if name == "enumerate":
        if first.is_tensor:
            return Value(Kind.STATIC, element=Value(Kind.STATIC, items=(TENSOR, first.inner)))
        return container([Value(Kind.STATIC, items=(STATIC, first.inner))])
    if name == "zip":
        return container([Value(Kind.STATIC, items=tuple(one.inner for one in given))])
    if name in ("map", "dict", "list", "tuple", "reversed", "sorted", "set"):
        return container([one.inner for one in given]) if given else container([])
    if name in PLAIN:
        return STATIC
    if name in ("iter", "next"):
        return first.inner if name == "next" else first
    made = joined(*(one.inner if one.is_container else one for one in given)) if given else STATIC
    return made.single


def _captured(value: Value) -> Value:
    """A tensor that plain Python made is an argument of the program; its value is not known."""
    return replace(value, kind=Kind.TENSOR) if value.kind is Kind.KNOWN else value
