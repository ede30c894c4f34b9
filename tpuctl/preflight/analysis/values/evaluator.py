"""Abstract evaluation of expressions: what kind of value each has, and which one if it is known."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import cache

from tpuctl.preflight.analysis.program.qualified_names import keras_name
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument, elements_of
from tpuctl.preflight.analysis.program.tensorflow_calls import TRACE_ARGUMENTS
from tpuctl.preflight.analysis.values.abstract_values import (
    NUMBER,
    OBJECT,
    STATIC,
    STRUCTURE,
    TENSOR,
    UNKNOWN,
    Closure,
    Kind,
    Scope,
    Value,
    constant,
    container,
    join,
)
from tpuctl.preflight.analysis.values.constants import (
    Constants,
    as_text,
    calculated,
    first_true,
    formatted,
    function_constants,
    join_texts,
    method_constants,
    negated,
    pairs,
    variable_constants,
)
from tpuctl.preflight.analysis.values.library import attribute_of, method_result, result_of

# Builtins that return Python values, and those that AutoGraph converts to return tensors.
STATIC_BUILTINS = {
    "len", "isinstance", "hasattr", "str", "repr", "print", "type", "id", "callable", "bool",
    "getattr_static", "issubclass", "format", "any", "all", "super",
}  # fmt: skip
TENSOR_BUILTINS = {
    "int", "float", "abs", "sum", "max", "min", "round", "pow", "divmod", "iter", "next",
    "reversed", "sorted", "list", "tuple", "set",
}  # fmt: skip
BUILTINS = STATIC_BUILTINS | TENSOR_BUILTINS | {"range", "enumerate", "zip", "map", "dict"}
# Builtins that return Python numbers unless AutoGraph converts them.
NUMBER_BUILTINS = {"int", "float", "len", "round"}
LOSS_METHODS = {"compute_loss", "compiled_loss"}  # of a Keras model: a single number
CONDITIONALS = ("tensorflow.cond", "tensorflow.case", "tensorflow.switch_case")


@cache
def _method_for(kind: str) -> str:
    """The name of the method that evaluates nodes of a type."""
    return f"_of_{kind.lower()}"


class Evaluator(ABC):
    """Evaluates expressions in a scope. Subclasses supply the names of host code, and decide how
    functions of the project are called."""

    is_converted = False  # whether AutoGraph converts the current function

    def __init__(self, project: Project) -> None:
        self.project = project

    @abstractmethod
    def call(self, closure: Closure, arguments: list[Value], keywords: dict[str, Value]) -> Value:
        """The result of calling a project's function."""

    @abstractmethod
    def global_value(self, module: Module, name: str) -> Value:
        """The value of a module's global name."""

    @abstractmethod
    def imported(self, name: str) -> Value:
        """The value of a qualified name of a library or of the project."""

    @abstractmethod
    def member(self, module: Module, owner: ast.ClassDef, name: str) -> Value:
        """The value of `self.name` in the methods of a class."""

    def record(self, node: ast.expr, value: Value) -> Value:
        """Record and return the value of an expression."""
        return value

    def attribute_of(self, value: Value, name: str) -> Value:
        """The value of an attribute that the project does not define."""
        return attribute_of(value, name)

    def method_result(self, value: Value, name: str, arguments: list[Value]) -> Value:
        """The result of a method that the project does not define."""
        return method_result(value, name, arguments)

    def unknown_result(self, arguments: list[Value]) -> Value:
        """The result of an unknown callable: tensors for tensors, as for layers."""
        if any(
            value.is_symbolic or (value.is_container and value.inner.is_symbolic)
            for value in arguments
        ):
            return STRUCTURE
        return UNKNOWN

    def value(self, node: ast.expr, scope: Scope) -> Value:
        """Evaluate an expression."""
        method = getattr(self, _method_for(node.__class__.__name__), None)
        if method is None:
            self.parts(node, scope)
            return self.record(node, STATIC)
        value: Value = method(node, scope)
        return self.record(node, value)

    def parts(self, node: ast.AST, scope: Scope) -> None:
        """Evaluate the expressions that a node contains."""
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.expr):
                self.value(part, scope)

    def _of_name(self, node: ast.Name, scope: Scope) -> Value:
        value = scope.find(node.id)
        return self.global_value(scope.module, node.id) if value is None else value

    def _of_constant(self, node: ast.Constant, _: Scope) -> Value:
        if isinstance(node.value, bytes):
            return constant(node.value.decode("utf-8", "replace"))
        if node.value is None or isinstance(node.value, (str, int, float)):
            return constant(node.value)
        return STATIC

    def _of_joinedstr(self, node: ast.JoinedStr, scope: Scope) -> Value:
        constants = constant("").constants
        for part in node.values:
            constants = pairs(constants, self.value(part, scope).constants, join_texts)
        return STATIC.holding(tuple(part for part in constants if part.text))

    def _of_formattedvalue(self, node: ast.FormattedValue, scope: Scope) -> Value:
        constants = self.value(node.value, scope).all_constants
        is_plain = node.format_spec is None and node.conversion == -1
        return STATIC.holding(tuple(map(as_text, constants)) if is_plain else ())

    def _of_attribute(self, node: ast.Attribute, scope: Scope) -> Value:
        name = scope.module.names.of(node)
        if name is not None and scope.find(name.partition(".")[0]) is None:
            return self.imported(name)
        if is_self(node.value) and scope.owner:
            self.record(node.value, OBJECT)
            return self.member(*scope.owner, node.attr)
        value = self.value(node.value, scope)
        if value.closure is not None and isinstance(value.closure.node, ast.Lambda):
            return UNKNOWN
        field = value.field(node.attr) if value.kind is Kind.OBJECT else None
        if value.owner is not None:
            result = self.member(*value.owner, node.attr)
        else:
            result = self.attribute_of(value, node.attr).holding(())
        return result if field is None else result.holding(field.constants)

    def _of_call(self, node: ast.Call, scope: Scope) -> Value:
        arguments = [self.value(arg, scope) for arg in node.args]
        if any(isinstance(arg, ast.Starred) for arg in node.args):
            arguments = [value.inner if isinstance(part, ast.Starred) else value
                     for value, part in zip(arguments, node.args, strict=True)]  # fmt: skip
        keywords = {
            keyword.arg: self.value(keyword.value, scope)
            for keyword in node.keywords
            if keyword.arg
        }
        for node_keyword in node.keywords:
            if node_keyword.arg is None:
                self.value(node_keyword.value, scope)
        name = scope.module.names.of(node.func)
        if name is not None and scope.find(name.partition(".")[0]) is None:
            return self.library(node, name, arguments, keywords, scope)
        if isinstance(node.func, ast.Name):
            return self._plain_call(node.func, arguments, keywords, scope)
        if isinstance(node.func, ast.Attribute):
            return self._method_call(node.func, arguments, keywords, scope)
        return self.object_call(self.value(node.func, scope), arguments, keywords)

    def library(
        self,
        node: ast.Call,
        name: str,
        arguments: list[Value],
        keywords: dict[str, Value],
        scope: Scope,
    ) -> Value:
        """The result of calling a function or class with a qualified name."""
        if self.project.find(name) is not None:
            return self.object_call(self.imported(name), arguments, keywords)
        results = []
        for number in TRACE_ARGUMENTS.get(name, ()):
            for part in elements_of(argument(node, number, "")):
                value = self.value(part, scope)
                if value.closure is not None:
                    results.append(self._traced_call(name, value.closure, arguments, keywords))
        if results and name in CONDITIONALS:
            return _symbolic(join(*results))
        closure = arguments[0].closure if arguments else None
        if closure is not None and name in ("tensorflow.function", "functools.partial"):
            bound = (*closure.bound, *arguments[1:])
            return replace(arguments[0], closure=replace(closure, bound=bound))
        if closure is not None and name in TRACE_ARGUMENTS and len(arguments) == 1:
            return arguments[0]
        constants = function_constants(name, [value.all_constants for value in arguments])
        owner, _, method = name.rpartition(".")
        if owner.rpartition(".")[0] in self.project.modules:
            constants = _method_constants(method, self.imported(owner), arguments)
        return _built(result_of(name, arguments, keywords, node), keywords).holding(constants)

    def _traced_call(
        self, name: str, closure: Closure, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value:
        """Call a function passed to `tf.cond`, `tf.map_fn` or a similar function."""
        if name in CONDITIONALS:
            return self.call(closure, [], {})
        if name == "tensorflow.nest.map_structure":
            return self.call(
                closure,
                [value.inner if value.is_container else value for value in arguments[1:]],
                {},
            )
        start = arguments[2] if name == "tensorflow.while_loop" and len(arguments) > 2 else None
        if start is not None and start.items is not None:
            return self.call(closure, [loop_carried(item) for item in start.items], {})
        count = len(closure.node.args.args)
        return self.call(closure, [STRUCTURE if start is None else TENSOR] * count, {})

    def _plain_call(
        self, func: ast.Name, arguments: list[Value], keywords: dict[str, Value], scope: Scope
    ) -> Value:
        value = scope.find(func.id)
        if value is None and func.id in BUILTINS:
            is_number = func.id in NUMBER_BUILTINS and not self.is_converted
            result = NUMBER if is_number else _builtin(func.id, arguments, self.is_converted)
            constants = [argument.all_constants for argument in arguments]
            return result.holding(function_constants(func.id, constants))
        if value is None:
            value = self.global_value(scope.module, func.id)
        self.record(func, value)
        return self.object_call(value, arguments, keywords)

    def _method_call(
        self, func: ast.Attribute, arguments: list[Value], keywords: dict[str, Value], scope: Scope
    ) -> Value:
        if is_self(func.value) and scope.owner:
            value = self.member(*scope.owner, func.attr)
            self.record(func, value)
            if value.kind is Kind.UNKNOWN and func.attr in ("add_weight", "add_variable"):
                return TENSOR
            if value.kind is Kind.UNKNOWN and func.attr in LOSS_METHODS and arguments:
                return TENSOR
            if value.kind is not Kind.UNKNOWN or value.closure is not None:
                return self.object_call(value, arguments, keywords)
            return self.unknown_result([*arguments, *keywords.values()])
        owner = self.value(func.value, scope)
        if owner.owner is not None:
            return self.object_call(self.member(*owner.owner, func.attr), arguments, keywords)
        if isinstance(func.value, ast.Call) and getattr(func.value.func, "id", "") == "super":
            return self.unknown_result(arguments)
        if isinstance(func.value, ast.Name) and func.attr in ("append", "extend", "add"):
            if owner.is_container and arguments:
                scope.names[func.value.id] = container([owner.inner, arguments[0]])
            return STATIC
        constants = _method_constants(func.attr, owner, arguments)
        return self.method_result(owner, func.attr, arguments).holding(constants)

    def object_call(
        self, value: Value, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value:
        """The result of calling a value."""
        if value.closure is not None:
            return self.call(value.closure, arguments, keywords)
        if value.is_class:
            return _built(Value(Kind.OBJECT, owner=value.owner), keywords)
        if value.owner is not None:
            method = self.member(*value.owner, "call")
            if method.closure is None:
                method = self.member(*value.owner, "__call__")
            if method.closure is not None:
                return _symbolic(self.call(method.closure, arguments, keywords))
        if keras_name(value.name) is not None and ".losses." in value.name:
            return TENSOR
        if value.kind is Kind.STATIC:
            return STATIC
        return self.unknown_result([*arguments, *keywords.values()])

    def _of_subscript(self, node: ast.Subscript, scope: Scope) -> Value:
        value, index = self.value(node.value, scope), self.value(node.slice, scope)
        if scope.module.names.of(node.value) == "os.environ":
            return value.holding(variable_constants(index.constants, ()))
        if isinstance(node.slice, ast.Slice):
            return value
        keys = [part.value for part in index.constants]
        if value.items and len(keys) == 1 and type(keys[0]) is int:
            return value.item(keys[0])
        if value.is_container:
            return value.inner.holding(_item(value, index).all_constants)
        texts = tuple(part for part in value.constants if isinstance(part.value, str))
        is_single = value.is_structure and isinstance(node.slice, ast.Tuple)
        return (value.single if is_single else value).holding(texts)

    def _of_slice(self, node: ast.Slice, scope: Scope) -> Value:
        parts = [part for part in (node.lower, node.upper, node.step) if part is not None]
        return join(*(self.value(part, scope) for part in parts)) if parts else STATIC

    def _of_binop(self, node: ast.BinOp, scope: Scope) -> Value:
        left, right = self.value(node.left, scope), self.value(node.right, scope)
        is_text = isinstance(node.left, ast.JoinedStr) or (
            isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
        )
        if is_text and isinstance(node.op, ast.Mod):
            return STATIC.holding(formatted(left.constants, "%"))
        value = self.combined(left, right)
        if left.is_container or right.is_container:
            return value
        return value.holding(calculated(node.op, left.constants, right.constants))

    def combined(self, left: Value, right: Value) -> Value:
        """The result of an arithmetic operation."""
        if left.is_container and right.is_container:
            return container([left.inner, right.inner])
        if left.is_container and not right.is_symbolic:
            return left
        strong = left if left.kind >= right.kind else right
        if not strong.is_symbolic:
            is_number = left.is_number and right.is_number
            return NUMBER if is_number else STATIC if strong.kind is Kind.STATIC else UNKNOWN
        is_boolean = left.is_boolean and right.is_boolean
        return replace(_operated(left, right), is_boolean=is_boolean)

    def _of_unaryop(self, node: ast.UnaryOp, scope: Scope) -> Value:
        value = self.value(node.operand, scope)
        if isinstance(node.op, ast.Not):
            return replace(value, is_boolean=True, constants=()) if value.is_tensor else STATIC
        return value.single.holding(
            negated(value.constants) if isinstance(node.op, ast.USub) else ()
        )

    def _of_boolop(self, node: ast.BoolOp, scope: Scope) -> Value:
        values = [self.value(operand, scope) for operand in node.values]
        constants = [value.all_constants for value in values]
        return join(*values).holding(first_true(constants) if isinstance(node.op, ast.Or) else ())

    def _of_compare(self, node: ast.Compare, scope: Scope) -> Value:
        parts = [self.value(operand, scope) for operand in (node.left, *node.comparators)]
        plain = (ast.Is, ast.IsNot, ast.In, ast.NotIn)
        if any(isinstance(operator, plain) for operator in node.ops):
            return STATIC
        if any(
            isinstance(operand, ast.Constant)
            and (operand.value is None or isinstance(operand.value, str))
            for operand in (node.left, *node.comparators)
        ):
            return STATIC
        strong = join(*parts)
        if not strong.is_symbolic or strong.is_container:
            return UNKNOWN if strong.kind is Kind.UNKNOWN else STATIC
        return replace(_operated(*parts), is_boolean=True)

    def _of_ifexp(self, node: ast.IfExp, scope: Scope) -> Value:
        self.value(node.test, scope)
        return join(self.value(node.body, scope), self.value(node.orelse, scope))

    def _of_tuple(self, node: ast.Tuple | ast.List, scope: Scope) -> Value:
        items = [self.value(element, scope) for element in node.elts]
        if any(isinstance(element, ast.Starred) for element in node.elts):
            return container([item.inner for item in items])
        return Value(Kind.STATIC, items=tuple(items)) if items else container([])

    _of_list = _of_tuple
    _of_set = _of_tuple

    def _of_dict(self, node: ast.Dict, scope: Scope) -> Value:
        for key in node.keys:
            if key is not None:
                self.value(key, scope)
        values = [self.value(item, scope) for item in node.values]
        fields = tuple(
            (key.value, value)
            for key, value in zip(node.keys, values, strict=True)
            if isinstance(key, ast.Constant)
        )
        # Iteration yields the keys, of which nothing is known.
        return replace(container(values).opaque, fields=fields)

    def _of_starred(self, node: ast.Starred | ast.Await, scope: Scope) -> Value:
        return self.value(node.value, scope)

    _of_await = _of_starred

    def _of_namedexpr(self, node: ast.NamedExpr, scope: Scope) -> Value:
        value = self.value(node.value, scope)
        self.assign(node.target, value, scope)
        return value

    def _of_lambda(self, node: ast.Lambda, scope: Scope) -> Value:
        return Value(Kind.OBJECT, closure=Closure(scope.module, node, scope, scope.owner))

    def _of_listcomp(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, scope: Scope
    ) -> Value:
        return container([self.value(node.elt, self._comprehension_scope(node.generators, scope))])

    _of_setcomp = _of_listcomp
    _of_generatorexp = _of_listcomp

    def _of_dictcomp(self, node: ast.DictComp, scope: Scope) -> Value:
        inner = self._comprehension_scope(node.generators, scope)
        self.value(node.key, inner)
        return container([self.value(node.value, inner)]).opaque

    def _comprehension_scope(self, generators: list[ast.comprehension], scope: Scope) -> Scope:
        inner = Scope(scope.module, scope.node, {}, scope, scope.owner)
        for generator in generators:
            self.assign(generator.target, self.value(generator.iter, inner).inner, inner)
            for test in generator.ifs:
                self.value(test, inner)
        return inner

    def assign(self, target: ast.expr, value: Value, scope: Scope) -> None:
        """Bind the names of an assignment target."""
        if isinstance(target, ast.Name):
            scope.names[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            items = value.items
            if items is None or len(items) != len(target.elts):
                items = (value.inner,) * len(target.elts)
            for element, item in zip(target.elts, items, strict=True):
                self.assign(element, item, scope)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, container([value.inner]), scope)
        elif isinstance(target, ast.Subscript):
            self.value(target.value, scope)
            self.value(target.slice, scope)


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _built(value: Value, keywords: dict[str, Value]) -> Value:
    """An object with the known arguments of its constructor."""
    fields = tuple((name, field) for name, field in keywords.items() if field.constants)
    return replace(value, fields=fields) if fields and value.kind is Kind.OBJECT else value


def _item(value: Value, key: Value) -> Value:
    """The value of a key of a dictionary, or an item of a list."""
    if value.fields:
        keys = [part.value for part in key.constants]
        return (value.field(keys[0]) if len(keys) == 1 else None) or UNKNOWN
    return value.inner


def _method_constants(name: str, owner: Value, arguments: list[Value]) -> Constants:
    if name == "get" and arguments:
        return _item(owner, arguments[0]).all_constants
    constants = [argument.all_constants for argument in arguments]
    return method_constants(name, owner.all_constants, constants)


def loop_carried(value: Value) -> Value:
    return TENSOR if value.kind in (Kind.STATIC, Kind.KNOWN) else value


def _operated(*values: Value) -> Value:
    """The result of an operation on tensors, or on what may be sizes that Python knows."""
    symbolic = [value for value in values if value.is_symbolic]
    kind = max(value.kind for value in symbolic)
    return Value(kind, is_structure=kind is Kind.KNOWN and all(v.is_structure for v in symbolic))


def _symbolic(value: Value) -> Value:
    return STRUCTURE if value.kind in (Kind.STATIC, Kind.UNKNOWN, Kind.OBJECT) else value


def _builtin(name: str, arguments: list[Value], is_converted: bool) -> Value:
    first = arguments[0] if arguments else STATIC
    if name == "range":
        is_tensor = any(value.is_tensor for value in arguments)
        return Value(max(value.kind for value in arguments)) if is_tensor else container([NUMBER])
    if name == "enumerate":
        if first.is_tensor and is_converted:
            return Value(Kind.STATIC, element=Value(Kind.STATIC, items=(TENSOR, first.inner)))
        return container([Value(Kind.STATIC, items=(NUMBER, first.inner))])
    if name == "zip":
        return container([Value(Kind.STATIC, items=tuple(value.inner for value in arguments))])
    if name in ("map", "dict", "list", "tuple", "reversed", "sorted", "set"):
        result = container([value.inner for value in arguments])
        return result.opaque if name in ("map", "dict") else result
    if name in STATIC_BUILTINS:
        return STATIC
    if name in ("iter", "next"):
        return first.inner if name == "next" else first
    result = (
        join(*(value.inner if value.is_container else value for value in arguments))
        if arguments
        else STATIC
    )
    return result.single
