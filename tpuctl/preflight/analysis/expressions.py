"""What an expression is, from what its parts are."""

from __future__ import annotations

import ast
from abc import abstractmethod
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
from tpuctl.preflight.analysis.functions import (
    TRACE_ARGUMENTS,
    argument,
    several,
)
from tpuctl.preflight.analysis.host_values import FUNCTIONS, TYPE, Surroundings
from tpuctl.preflight.analysis.library import attribute_of, method_result, result_of
from tpuctl.preflight.analysis.names import keras_name
from tpuctl.preflight.analysis.source import Module
from tpuctl.preflight.analysis.traced import Traced, root_of

__all__ = ["Expressions"]

# Python's own: those whose result on a tensor is a tensor under autograph, or is none.
PLAIN = {"len", "isinstance", "hasattr", "str", "repr", "print", "type", "id", "callable",
         "bool", "getattr_static", "issubclass", "format", "any", "all", "super"}  # fmt: skip
PASSES = {"int", "float", "abs", "sum", "max", "min", "round", "pow", "divmod", "iter", "next",
          "reversed", "sorted", "list", "tuple", "set"}  # fmt: skip
STRUCTURE = Value(Kind.TENSOR, is_structure=True)
NUMBERS = {"int", "float", "len", "round"}  # Python's own, unless autograph converts them


class Expressions(Surroundings):
    """Evaluates expressions to kinds. What is noted of one is what holds in all its contexts."""

    is_converted = True  # whether autograph converts what is looked at

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
            return self.call(closure, [_carried(one) for one in start.items], {})
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


def _carried(value: Value) -> Value:
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
