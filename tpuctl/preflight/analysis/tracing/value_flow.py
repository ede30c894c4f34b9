"""Data flow of a project's functions and classes, and where they are called.

Values are followed through assignments, attributes, arguments of the project's functions, returns
and wrappers such as `tf.function`, whether or not that code runs, until they are called or passed
to unknown code.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator

from tpuctl.preflight.analysis.program.qualified_names import keras_name
from tpuctl.preflight.analysis.program.scope_definitions import Definition, Definitions, Key
from tpuctl.preflight.analysis.program.source import Module
from tpuctl.preflight.analysis.program.syntax import FUNCTIONS, dotted
from tpuctl.preflight.analysis.program.wrappers import WRAPPERS
from tpuctl.preflight.analysis.tracing.host_functions import is_exporting, is_host

Item = tuple[Definition, bool]  # a definition; True for an instance of that class
# Attributes of a layer whose use does not run it.
INERT_ATTRIBUTES = {
    "adapt",
    "build",
    "get_config",
    "get_vocabulary",
    "summary",
    "name",
    "vocabulary_size",
}
INERT_ATTRIBUTES |= {
    "get_concrete_function",
    "trainable",
    "set_vocabulary",
    "vocabulary",
    "__name__",
    "__class__",
    "__doc__",
}
# What scripts call on the host, or in a step.
METRIC_METHODS = {"update_state", "result", "reset_state", "reset_states", "variables", "dtype"}
READING_METHODS = {"values", "items", "get", "pop", "copy"}  # of a dictionary or a list
ADDING_METHODS = {"append", "add", "insert", "extend"}
INSPECTORS = {"isinstance", "issubclass", "super", "type", "hasattr", "print"}
# The value of such an expression is, or contains, the value of its child.
CONTAINING_NODES: tuple[type[ast.AST], ...] = (
    ast.List,
    ast.Tuple,
    ast.Set,
    ast.Dict,
    ast.IfExp,
    ast.BoolOp,
    ast.Starred,
)
CONTAINING_NODES += (
    ast.NamedExpr,
    ast.Await,
    ast.ListComp,
    ast.SetComp,
    ast.GeneratorExp,
    ast.DictComp,
)
# Nodes that only read a value or use it as a type.
READING_NODES: tuple[type[ast.AST], ...] = (
    ast.Compare,
    ast.If,
    ast.While,
    ast.Assert,
    ast.UnaryOp,
    ast.FormattedValue,
)
READING_NODES += (ast.ClassDef, ast.AnnAssign, ast.arg)
LOGGERS = ("logging.", "absl.logging.")


class ValueFlow:
    """The uses of a project's functions and classes as values."""

    def __init__(self, definitions: Definitions) -> None:
        self.definitions = definitions
        self.uses: dict[ast.AST, set[Item]] = defaultdict(set)  # by expression
        self.exported: set[ast.AST] = set()  # functions that are saved for serving
        self.created: set[ast.ClassDef] = set()  # classes with instances
        self.escaped: set[ast.AST] = set()  # those whose instances unknown code receives
        self.items: dict[Key, set[Item]] = defaultdict(set)
        # By attribute name and class: the assigned values, and the nodes that read them.
        self.attributes: dict[str, dict[ast.ClassDef, set[Item]]] = {}
        self.readers: dict[str, dict[ast.ClassDef, list[tuple[Module, ast.AST]]]] = {}
        self.returned: dict[ast.AST, set[Item]] = defaultdict(set)
        self.called: dict[ast.AST, dict[ast.AST, Module]] = defaultdict(dict)
        self.carried: dict[ast.AST, set[Item]] = defaultdict(set)
        self.pending: list[tuple[Module, ast.AST, Item]] = []
        self.loads: dict[Key, list[tuple[Module, ast.AST]]] = {}
        self._start()
        while self.pending:
            self._follow(*self.pending.pop())

    def _start(self) -> None:
        definitions = self.definitions
        for key, definition in definitions.all:
            self._bind(key, (definition, False))
        for name, attributes in definitions.attribute_loads.items():
            for module, node in attributes:
                for owner in self._owners(module, node):
                    self._read_attribute(owner, name, module, node)
        for definition, module in definitions.module_of.items():
            around = module.parents[definition]
            if isinstance(definition, ast.Lambda):
                self._carry(module, definition, (definition, False))
            elif isinstance(around, ast.ClassDef):
                self._bind_attribute(around, definition.name, (definition, False))

    def _carry(self, module: Module, node: ast.AST, item: Item) -> None:
        if item not in self.carried[node]:
            self.carried[node].add(item)
            self.pending.append((module, node, item))
            if isinstance(node, ast.Attribute) and _is_property(item[0]):
                self.called[item[0]][node] = module
                for returned in list(self.returned[item[0]]):
                    self._carry(module, node, returned)

    def _bind(self, key: Key, item: Item) -> None:
        if item not in self.items[key]:
            self.items[key].add(item)
            if key not in self.loads:
                self.loads[key] = self.definitions.loads_of(key)
            for module, node in self.loads[key]:
                self._carry(module, node, item)

    def _bind_attribute(self, owner: ast.ClassDef, name: str, item: Item) -> None:
        items = self.attributes.setdefault(name, {}).setdefault(owner, set())
        if item not in items:
            items.add(item)
            for reader, loads in self.readers.get(name, {}).items():
                if self._is_related(owner, reader):
                    for module, node in loads:
                        self._carry(module, node, item)

    def _read_attribute(
        self, owner: ast.ClassDef, name: str, module: Module, node: ast.AST
    ) -> None:
        loads = self.readers.setdefault(name, {}).setdefault(owner, [])
        if (module, node) not in loads:
            loads.append((module, node))
            for holder, items in list(self.attributes.get(name, {}).items()):
                if self._is_related(owner, holder):
                    for item in list(items):
                        self._carry(module, node, item)

    def _is_related(self, cls: ast.ClassDef, other: ast.ClassDef) -> bool:
        family_of = self.definitions.family_of
        return cls is other or cls in family_of(other) or other in family_of(cls)

    def _follow(self, module: Module, node: ast.AST, item: Item) -> None:
        """Follow the value of an expression to its parent node."""
        parent = module.parents.get(node)
        if isinstance(parent, ast.keyword):
            node, parent = parent, module.parents.get(parent)
        if isinstance(parent, ast.Call):
            if parent.func is node:
                self._call(module, node, parent, item)
            else:
                self._pass_argument(module, node, parent, item)
        elif isinstance(parent, ast.Attribute):
            self._use_attribute(module, node, parent, item)
        elif isinstance(parent, CONTAINING_NODES) or getattr(parent, "value", None) is node:
            assert parent is not None
            self._store(module, node, parent, item)
        elif isinstance(parent, (ast.For, ast.comprehension)):
            self._assign(module, parent.target, item)
        elif isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node in parent.decorator_list:
                self.uses[node].add(item)
        elif not isinstance(parent, (*READING_NODES, ast.Subscript)):
            self._escape(node, item)

    def _use_attribute(
        self, module: Module, node: ast.AST, parent: ast.Attribute, item: Item
    ) -> None:
        if isinstance(item[0], ast.ClassDef):
            self._read_attribute(item[0], parent.attr, module, parent)
        if parent.attr == "get_concrete_function":
            self.exported.add(item[0])
        elif parent.attr in METRIC_METHODS:
            self.uses[node].add(item)
        elif parent.attr in READING_METHODS:
            self._carry(module, module.parents[parent], item)
        elif parent.attr not in INERT_ATTRIBUTES:
            self._escape(node, item)

    def _store(self, module: Module, node: ast.AST, parent: ast.AST, item: Item) -> None:
        """Follow a value into a statement or a containing expression."""
        if isinstance(parent, (ast.Assign, ast.AnnAssign)):
            owner = module.parents.get(parent)
            for target in parent.targets if isinstance(parent, ast.Assign) else [parent.target]:
                self._assign(module, target, item)
                if isinstance(owner, ast.ClassDef) and isinstance(target, ast.Name):
                    self._bind_attribute(owner, target.id, item)
        elif isinstance(parent, ast.Return):
            self._return(self.definitions.scopes[parent], item)
        elif isinstance(parent, ast.Subscript) and not isinstance(parent.ctx, ast.Load):
            return  # `metrics[name] = …` changes the value
        elif isinstance(parent, (*CONTAINING_NODES, ast.Subscript)):
            if isinstance(parent, ast.NamedExpr):
                self._assign(module, parent.target, item)
            self._carry(module, parent, item)
        elif not isinstance(parent, (ast.Expr, ast.FormattedValue)):
            self._escape(node, item)

    def _call(self, module: Module, node: ast.AST, call: ast.Call, item: Item) -> None:
        definition, is_object = item
        self.uses[node].add(item)
        if isinstance(definition, ast.ClassDef) and not is_object:
            self.created.add(definition)
            self._carry(module, call, (definition, True))
            return
        self.called[definition][call] = module
        for returned in list(self.returned[definition]):
            self._carry(module, call, returned)

    def _escape(self, node: ast.AST, item: Item) -> None:
        """Unknown code may call the value, or instantiate it and call the instance."""
        definition, is_object = item
        is_object = is_object or isinstance(definition, ast.ClassDef)
        self.escaped.add(definition)
        self.uses[node].add((definition, is_object))

    def _assign(self, module: Module, target: ast.AST, item: Item) -> None:
        if isinstance(target, ast.Name):
            key = self.definitions.key_of(module, target)
            if key is not None:
                self._bind(key, item)
        elif isinstance(target, ast.Attribute):
            for owner in self._owners(module, target):
                self._bind_attribute(owner, target.attr, item)
        elif isinstance(target, (ast.Subscript, ast.Starred)):
            self._assign(module, target.value, item)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for element in target.elts:
                self._assign(module, element, item)

    def _owners(self, module: Module, node: ast.Attribute) -> Iterable[ast.ClassDef]:
        """The class that an attribute belongs to: for `self` the enclosing class, otherwise the
        only class that assigns such an attribute, if there is just one."""
        if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            owner = module.enclosing_class(node)
            return () if owner is None else (owner,)
        name = module.names.of(node) or ""
        if name.startswith("tensorflow.") or keras_name(name) is not None:
            return ()
        owners = self.definitions.assigned.get(node.attr, ())
        return owners if len(owners) == 1 else ()

    def _return(self, function: ast.AST, item: Item) -> None:
        if item in self.returned[function]:
            return
        self.returned[function].add(item)
        for call, module in list(self.called[function].items()):
            self._carry(module, call, item)

    def _pass_argument(self, module: Module, node: ast.AST, call: ast.Call, item: Item) -> None:
        """Follow a value that is passed as an argument."""
        name = module.names.of(call.func)
        if is_exporting(module, call, node):
            self._export(item)
        elif name in WRAPPERS:
            self._carry(module, call, item)
        elif is_host(self.definitions.project, module, call):
            self._escape(node.value if isinstance(node, ast.keyword) else node, item)
        elif (name is None and getattr(call.func, "id", "") in INSPECTORS) or (
            name is not None and name.startswith(LOGGERS)
        ):
            return
        elif isinstance(call.func, ast.Attribute) and call.func.attr in ADDING_METHODS:
            self._assign(module, call.func.value, item)
        elif (keras_name(name) or "").rpartition(".")[2][:1].isupper():
            self._carry(module, call, item)
        else:
            holders = list(self._parameters(module, node, call))
            for key in holders:
                self._bind(key, item)
            if not holders:
                self._escape(node.value if isinstance(node, ast.keyword) else node, item)

    def _export(self, item: Item) -> None:
        """Save a function, or the functions of an object."""
        definition, is_object = item
        if not isinstance(definition, ast.ClassDef):
            self.exported.add(definition)
        elif is_object:
            self.exported.update(self.definitions.methods_of(definition))

    def _parameters(self, module: Module, node: ast.AST, call: ast.Call) -> Iterator[Key]:
        """The parameters of the project's functions that receive an argument."""
        definitions = self.definitions
        key = definitions.key_of(module, call.func)
        definition = definitions.defined.get(key) if key is not None else None
        skipped = 0
        function: ast.AST | None = definition
        if isinstance(definition, ast.ClassDef):
            skipped = 1
            methods = (
                method for method in definitions.methods_of(definition) if method.name == "__init__"
            )
            function = next(methods, None)
        if not isinstance(function, FUNCTIONS):
            return
        positional = [*function.args.posonlyargs, *function.args.args]
        if isinstance(node, ast.keyword):
            names = {parameter.arg for parameter in (*positional, *function.args.kwonlyargs)}
            if node.arg in names and node.arg is not None:
                yield function, node.arg
        elif node in call.args:
            position = call.args.index(node) + skipped
            before = call.args[: call.args.index(node)]
            is_plain = not any(isinstance(value, ast.Starred) for value in before)
            if is_plain and position < len(positional) and not isinstance(node, ast.Starred):
                yield function, positional[position].arg


def _is_property(node: Definition) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any(
        dotted(decorator) in ("property", "functools.cached_property") for decorator in decorators
    )
