"""Abstract evaluation of expressions, in traced code and in the host code around it."""

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
    join,
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
    elements_of,
    own_nodes,
    parameters_of,
)
from tpuctl.preflight.analysis.tensorflow_calls import TRACE_ARGUMENTS
from tpuctl.preflight.analysis.traced import Traced, root_of

__all__ = ["Expressions", "loop_carried"]

# Builtins that return Python values, and those that AutoGraph converts to return tensors.
STATIC_BUILTINS = {
    "len", "isinstance", "hasattr", "str", "repr", "print", "type", "id", "callable", "bool",
    "getattr_static", "issubclass", "format", "any", "all", "super",
}  # fmt: skip
TENSOR_BUILTINS = {
    "int", "float", "abs", "sum", "max", "min", "round", "pow", "divmod", "iter", "next",
    "reversed", "sorted", "list", "tuple", "set",
}  # fmt: skip
CLASS_PREFIX = "type "  # prefix of names that mean a class, not an instance
STRUCTURE = Value(Kind.TENSOR, is_structure=True)
NUMBER_BUILTINS = {
    "int",
    "float",
    "len",
    "round",
}  # return Python numbers unless AutoGraph converts them


class Expressions:
    """Evaluates expressions to abstract values: traced code completely, host code on demand.

    The recorded value of an expression covers all contexts in which it was evaluated.
    """

    is_converted = True  # whether AutoGraph converts the current function

    def __init__(self, project: Project) -> None:
        self.project = project
        self.values: dict[ast.AST, Value] = {}
        self.attributes: dict[tuple[ast.AST, str], Value] = {}
        self.host_values: dict[tuple[ast.AST, str], Value] = {}
        self.assigned: dict[ast.AST, dict[str, list[ast.AST]]] = {}
        self.calls_by_name: dict[str, list[tuple[Module, ast.Call]]] | None = None
        self.subclasses: dict[ast.AST, list[tuple[Module, ast.ClassDef]]] | None = None
        self.calls_by_function: dict[ast.AST, list[tuple[Module, ast.Call]]] = {}
        self.host_depth = 0  # nesting depth of host code under evaluation
        self.members: dict[ast.AST, dict[str, list[tuple[ast.expr, ast.AST]]]] = {}

    @abstractmethod
    def call(self, closure: Closure, arguments: list[Value], keywords: dict[str, Value]) -> Value:
        """The result of calling a project's function."""

    def callee(self, caller: Traced, traced: Traced) -> Traced:
        """How a function is traced that a traced function defines or reaches."""
        program = root_of(traced.module, traced.node)
        return (
            traced
            if program is None
            else replace(program, is_root=False, is_reached=caller.is_reached)
        )

    # Expressions ------------------------------------------------------------------------------

    def value(self, node: ast.expr, scope: Scope) -> Value:
        """Evaluate an expression and record its value."""
        value = self._value(node, scope)
        previous = self.values.get(node)
        self.values[node] = value if previous is None else join(previous, value)
        return value

    def _value(self, node: ast.expr, scope: Scope) -> Value:
        method = getattr(self, f"_of_{type(node).__name__.lower()}", None)
        if method is not None:
            value: Value = method(node, scope)
            return value
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.expr):
                self.value(part, scope)
        return STATIC

    def _of_name(self, node: ast.Name, scope: Scope) -> Value:
        value = scope.find(node.id)
        if value is not None:
            return value
        return self.global_value(scope.module, node)

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
        owner_class = self._class_of_value(value)
        if owner_class is not None:
            return self.member(*owner_class, node.attr)
        return attribute_of(value, node.attr)

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
            return self._library(node, name, arguments, keywords, scope)
        if isinstance(node.func, ast.Name):
            return self._plain_call(node, node.func, arguments, keywords, scope)
        if isinstance(node.func, ast.Attribute):
            return self._method_call(node, node.func, arguments, keywords, scope)
        return self._object_call(self.value(node.func, scope), arguments, keywords)

    def _library(
        self,
        node: ast.Call,
        name: str,
        arguments: list[Value],
        keywords: dict[str, Value],
        scope: Scope,
    ) -> Value:
        definition = self.project.find(name)
        if definition is not None:
            return self._call_definition(definition[0], definition[1], arguments, keywords)
        results = []
        for number in TRACE_ARGUMENTS.get(name, ()):
            for part in elements_of(argument(node, number, "")):
                value = self.values.get(part, UNKNOWN)
                if value.closure is not None:
                    results.append(self._traced_call(name, value.closure, arguments, keywords))
        if results and name in ("tensorflow.cond", "tensorflow.switch_case", "tensorflow.case"):
            return _symbolic(join(*results))
        if (
            name in ("tensorflow.function", "functools.partial")
            and arguments
            and arguments[0].closure
        ):
            bound = tuple(arguments[1:])
            closure = replace(arguments[0].closure, bound=arguments[0].closure.bound + bound)
            return replace(arguments[0], closure=closure)
        if name in TRACE_ARGUMENTS and arguments and arguments[0].closure and len(arguments) == 1:
            return arguments[0]
        return result_of(name, arguments, keywords, node)

    def _traced_call(
        self, name: str, closure: Closure, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value:
        """Call a function passed to `tf.cond`, `tf.map_fn` or a similar function."""
        if name in ("tensorflow.cond", "tensorflow.case", "tensorflow.switch_case"):
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
        self,
        node: ast.Call,
        func: ast.Name,
        arguments: list[Value],
        keywords: dict[str, Value],
        scope: Scope,
    ) -> Value:
        value = scope.find(func.id)
        if value is None and func.id in STATIC_BUILTINS | TENSOR_BUILTINS | {
            "range",
            "enumerate",
            "zip",
            "map",
            "dict",
        }:
            if func.id in NUMBER_BUILTINS and not self.is_converted:
                return STATIC
            return _builtin(func.id, arguments)
        if value is None:
            value = self.global_value(scope.module, func)
        self.values[func] = value
        return self._object_call(value, arguments, keywords)

    def _method_call(
        self,
        node: ast.Call,
        func: ast.Attribute,
        arguments: list[Value],
        keywords: dict[str, Value],
        scope: Scope,
    ) -> Value:
        if isinstance(func.value, ast.Name) and func.value.id == "self" and scope.owner:
            value = self.member(*scope.owner, func.attr)
            self.values[func] = value
            if value.kind is Kind.UNKNOWN and func.attr in ("add_weight", "add_variable"):
                return TENSOR
            if value.kind is not Kind.UNKNOWN or value.closure is not None:
                return self._object_call(value, arguments, keywords)
            return _unknown_result([*arguments, *keywords.values()])
        owner = self.value(func.value, scope)
        owner_class = self._class_of_value(owner)
        if owner_class is not None:
            return self._object_call(self.member(*owner_class, func.attr), arguments, keywords)
        if isinstance(func.value, ast.Call) and getattr(func.value.func, "id", "") == "super":
            return _unknown_result(arguments)
        if isinstance(func.value, ast.Name) and func.attr in ("append", "extend", "add"):
            if owner.is_container and arguments:
                scope.names[func.value.id] = container([owner.inner, arguments[0]])
            return STATIC
        return method_result(owner, func.attr, arguments)

    def _object_call(
        self, value: Value, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value:
        """The result of calling a value."""
        if value.closure is not None:
            return self.call(value.closure, arguments, keywords)
        if value.name.startswith(CLASS_PREFIX):
            return Value(Kind.OBJECT, name=value.name.removeprefix(CLASS_PREFIX))
        owner_class = self._class_of_value(value)
        if owner_class is not None:
            method = self.member(*owner_class, "call")
            if method.closure is None:
                method = self.member(*owner_class, "__call__")
            if method.closure is not None:
                return _symbolic(self.call(method.closure, arguments, keywords))
        if keras_name(value.name) is not None and ".losses." in value.name:
            return TENSOR
        if value.kind is Kind.STATIC:
            return STATIC
        return _unknown_result([*arguments, *keywords.values()])

    def _call_definition(
        self, module: Module, node: ast.AST, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value:
        if isinstance(node, ast.ClassDef):
            return Value(Kind.OBJECT, name=self._class_key(module, node))
        assert isinstance(node, FUNCTIONS)
        return self.call(Closure(module, node, None), arguments, keywords)

    def _of_subscript(self, node: ast.Subscript, scope: Scope) -> Value:
        value = self.value(node.value, scope)
        self.value(node.slice, scope)
        index = node.slice
        if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub):
            index = index.operand
        if value.items and isinstance(index, ast.Constant) and isinstance(index.value, int):
            number = index.value if index is node.slice else -index.value
            if -len(value.items) <= number < len(value.items):
                return value.items[number]
        if value.is_container:
            return value if isinstance(node.slice, ast.Slice) else value.inner
        if value.is_structure and isinstance(node.slice, ast.Tuple):
            return value.single
        return value

    def _of_slice(self, node: ast.Slice, scope: Scope) -> Value:
        parts = [part for part in (node.lower, node.upper, node.step) if part is not None]
        return join(*(self.value(part, scope) for part in parts)) if parts else STATIC

    def _of_binop(self, node: ast.BinOp, scope: Scope) -> Value:
        left, right = self.value(node.left, scope), self.value(node.right, scope)
        is_text = isinstance(node.left, ast.JoinedStr) or (
            isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
        )
        if is_text and isinstance(node.op, ast.Mod):
            return STATIC
        return self.combined(left, right)

    def combined(self, left: Value, right: Value) -> Value:
        """The result of an arithmetic operation."""
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
        return join(*(self.value(operand, scope) for operand in node.values))

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
        return Value(strong.kind, is_boolean=True)

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
        return container([self.value(item, scope) for item in node.values])

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
        return container([self.value(node.elt, self._comprehension_scope(node.generators, scope))])

    _of_setcomp = _of_listcomp
    _of_generatorexp = _of_listcomp

    def _of_dictcomp(self, node: ast.DictComp, scope: Scope) -> Value:
        inner = self._comprehension_scope(node.generators, scope)
        self.value(node.key, inner)
        return container([self.value(node.value, inner)])

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

    # Host code --------------------------------------------------------------------------------

    def _imported(self, module: Module, node: ast.expr, name: str) -> Value:
        """A name of a library or of another module."""
        definition = self.project.find(name)
        if definition is not None:
            if isinstance(definition[1], FUNCTIONS):
                return Value(Kind.OBJECT, closure=Closure(definition[0], definition[1]))
            assert isinstance(definition[1], ast.ClassDef)
            return Value(
                Kind.OBJECT, name=CLASS_PREFIX + self._class_key(definition[0], definition[1])
            )
        where, _, last = name.rpartition(".")
        other_module = self.project.modules.get(where)
        if other_module is not None:
            return self.global_value(other_module, ast.Name(last))
        return STATIC if last.isupper() else Value(Kind.OBJECT, name=name)

    def global_value(self, module: Module, node: ast.Name) -> Value:
        """The value of a module's global name."""
        key = (module.tree, node.id)
        if key not in self.host_values:
            self.host_values[key] = UNKNOWN
            self.host_values[key] = self._global_value(module, node)
        return self.host_values[key]

    def _global_value(self, module: Module, node: ast.Name) -> Value:
        value = self._assigned(module, module.tree, node.id)
        if value is not None:
            return value
        name = module.names.imports.get(node.id)
        return UNKNOWN if name is None else self._imported(module, node, name)

    def _assigned(self, module: Module, scope: ast.AST, name: str) -> Value | None:
        """The value that host code assigns to a name of a function or module."""
        if scope not in self.assigned:
            self.assigned[scope] = assignments_of(scope)
        nodes = self.assigned[scope].get(name)
        if nodes is None:
            return None
        values = []
        for node in nodes[-4:]:
            if isinstance(node, FUNCTIONS):
                around = self.host_scope(module, node)
                owner = module.enclosing_class(node)
                closure = Closure(module, node, around, (module, owner) if owner else None)
                values.append(Value(Kind.OBJECT, closure=closure))
            elif isinstance(node, ast.ClassDef):
                values.append(Value(Kind.OBJECT, name=CLASS_PREFIX + self._class_key(module, node)))
            elif isinstance(node, ast.For):
                values.append(_captured(self.host_value(module, node.iter).inner))
            elif isinstance(node, ast.With):
                values.append(OBJECT)
            elif isinstance(node, ast.expr):
                values.append(_captured(self.host_value(module, node)))
            else:
                values.append(UNKNOWN)
        return join(*values)

    def host_scope(self, module: Module, node: ast.AST) -> Scope | None:
        """The scope of the enclosing function, evaluated as host code."""
        around = module.enclosing_function(node)
        return None if around is None else HostScope(self, module, around)

    def host_value(self, module: Module, node: ast.expr) -> Value:
        """The value of an expression outside traced functions."""
        around = module.enclosing_function(node)
        scope = Scope(module, module.tree) if around is None else HostScope(self, module, around)
        return self.host(node, scope)

    def host(self, node: ast.expr, scope: Scope) -> Value:
        self.host_depth += 1
        try:
            return self.value(node, scope)
        finally:
            self.host_depth -= 1

    def host_result(self, closure: Closure) -> Value:
        """The result of a function called by host code."""
        node = closure.node
        key = (node, "return")
        if key not in self.host_values:
            self.host_values[key] = UNKNOWN
            if isinstance(node, ast.Lambda):
                expressions: list[ast.expr] = [node.body]
            else:
                returns = (
                    statement for statement in own_nodes(node) if isinstance(statement, ast.Return)
                )
                expressions = [
                    statement.value for statement in returns if statement.value is not None
                ]
            scope = HostScope(self, closure.module, node, closure.owner)
            self.host_values[key] = join(
                *(self.host(expression, scope) for expression in expressions[:4])
            )
        return self.host_values[key]

    # Classes ----------------------------------------------------------------------------------

    def _class_key(self, module: Module, node: ast.ClassDef) -> str:
        key = f"{module.name}:{node.name}"
        self.project.cache[("class", key)] = (module, node)
        return key

    def _class_of_value(self, value: Value) -> tuple[Module, ast.ClassDef] | None:
        if value.kind is not Kind.OBJECT or not value.name:
            return None
        key = ("class", value.name.removeprefix(CLASS_PREFIX))
        definition: tuple[Module, ast.ClassDef] | None = self.project.cache.get(key)
        return definition

    def member(self, module: Module, owner: ast.ClassDef, name: str) -> Value:
        """The value of `self.name` in the methods of a class."""
        key = (owner, name)
        if key not in self.attributes:
            self.attributes[key] = UNKNOWN
            self.attributes[key] = self._member(module, owner, name)
        return self.attributes[key]

    def _member(self, module: Module, owner: ast.ClassDef, name: str) -> Value:
        method = method_of(self.project, module, owner, name)
        if method is not None:
            where, node = method
            if any(
                dotted(decorator) == "property" for decorator in getattr(node, "decorator_list", [])
            ):
                return UNKNOWN
            is_static = any(
                dotted(decorator) == "staticmethod"
                for decorator in getattr(node, "decorator_list", [])
            )
            bound = () if is_static else (OBJECT,)
            return Value(Kind.OBJECT, closure=Closure(where, node, None, (module, owner), bound))
        if owner not in self.members:
            self.members[owner] = members_of(owner)
        values = []
        for value, function in self.members[owner].get(name, [])[:4]:
            scope = HostScope(self, module, function, (module, owner))
            values.append(_captured(self.host(value, scope)))
        if values:
            return join(*values)
        for base in owner.bases:
            definition = class_of(self.project, module, base)
            if definition is not None and definition[1] is not owner:
                return self.member(*definition, name)
        return UNKNOWN

    def subclasses_of(self, owner: ast.ClassDef) -> list[tuple[Module, ast.ClassDef]]:
        """The project's direct and indirect subclasses of a class."""
        if self.subclasses is None:
            self.subclasses = defaultdict(list)
            for module in self.project:
                for value in module.classes.values():
                    for base in value.bases:
                        definition = class_of(self.project, module, base)
                        if definition is not None and definition[1] is not value:
                            self.subclasses[definition[1]].append((module, value))
        subclasses: list[tuple[Module, ast.ClassDef]] = []
        pending = list(self.subclasses.get(owner, []))
        while pending:
            subclass = pending.pop()
            if subclass not in subclasses and subclass[1] is not owner:
                subclasses.append(subclass)
                pending.extend(self.subclasses.get(subclass[1], []))
        return subclasses

    # Callers ----------------------------------------------------------------------------------

    def host_parameter(self, node: Function, name: str) -> Value:
        """The value that callers pass for a parameter of a host function."""
        parameters = parameters_of(node)
        index = [parameter.arg for parameter in parameters].index(name)
        annotation = parameters[index].annotation
        if annotation is not None and ast.unparse(annotation) in ("int", "bool", "float", "str"):
            return STATIC
        if parameters[0].arg == "self":
            index -= 1
        values = []
        for module, call in self.callers(node)[:4]:
            value = argument(call, index, name)
            if value is not None and not isinstance(value, ast.Starred):
                values.append(self.host_value(module, value))
        return join(*values)

    def callers(self, node: Function) -> list[tuple[Module, ast.Call]]:
        """The calls of a function in host code."""
        if self.calls_by_name is None:
            self.calls_by_name = defaultdict(list)
            for module in self.project:
                for call in module.calls:
                    path = dotted(call.func)
                    if path is not None:
                        self.calls_by_name[path.rpartition(".")[2]].append((module, call))
        name = getattr(node, "name", "")
        if name not in self.calls_by_name or not name:
            return []
        if node not in self.calls_by_function:
            self.calls_by_function[node] = [
                (module, call)
                for module, call in self.calls_by_name[name]
                if self._is_call_of(module, call, node)
            ]
        return self.calls_by_function[node]

    def _is_call_of(self, module: Module, call: ast.Call, node: Function) -> bool:
        definition = function_of(self.project, module, call.func)
        if definition is None and isinstance(call.func, ast.Attribute):
            # A method of an object of unknown class: match by name.
            return (
                module.names.of(call.func) is None
                and node.args.args[:1] != []
                and (node.args.args[0].arg == "self")
            )
        return definition is not None and definition[1] is node


class HostScope(Scope):
    """The names of a function that runs on the host."""

    def __init__(
        self,
        around: Expressions,
        module: Module,
        node: ast.AST,
        owner: tuple[Module, ast.ClassDef] | None = None,
    ) -> None:
        super().__init__(module, node, owner=owner)
        self.expressions = around

    def find(self, name: str) -> Value | None:
        scope: ast.AST | None = self.node
        while isinstance(scope, FUNCTIONS):
            key = (scope, name)
            host_values = self.expressions.host_values
            if key not in host_values:
                host_values[key] = UNKNOWN
                value = self.expressions._assigned(self.module, scope, name)
                if value is None and name in {parameter.arg for parameter in parameters_of(scope)}:
                    value = self.expressions.host_parameter(scope, name)
                if value is None:
                    del host_values[key]
                else:
                    host_values[key] = value
            cached = host_values.get(key)
            if cached is not None:
                return cached
            scope = self.module.enclosing_function(scope)
        return self.names.get(name)


def loop_carried(value: Value) -> Value:
    return TENSOR if value.kind in (Kind.STATIC, Kind.KNOWN) else value


def _symbolic(value: Value) -> Value:
    return STRUCTURE if value.kind in (Kind.STATIC, Kind.UNKNOWN, Kind.OBJECT) else value


def _unknown_result(arguments: list[Value]) -> Value:
    """The result of an unknown callable: tensors for tensors, as for layers."""
    if any(
        value.is_symbolic or (value.is_container and value.inner.is_symbolic) for value in arguments
    ):
        return STRUCTURE
    return UNKNOWN


def _builtin(name: str, arguments: list[Value]) -> Value:
    first = arguments[0] if arguments else STATIC
    if name == "range":
        is_tensor = any(value.is_tensor for value in arguments)
        return Value(max(value.kind for value in arguments)) if is_tensor else container([STATIC])
    if name == "enumerate":
        if first.is_tensor:
            return Value(Kind.STATIC, element=Value(Kind.STATIC, items=(TENSOR, first.inner)))
        return container([Value(Kind.STATIC, items=(STATIC, first.inner))])
    if name == "zip":
        return container([Value(Kind.STATIC, items=tuple(value.inner for value in arguments))])
    if name in ("map", "dict", "list", "tuple", "reversed", "sorted", "set"):
        return container([value.inner for value in arguments]) if arguments else container([])
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


def _captured(value: Value) -> Value:
    """A tensor created on the host is an argument of the program, so its value is unknown."""
    return replace(value, kind=Kind.TENSOR) if value.kind is Kind.KNOWN else value
