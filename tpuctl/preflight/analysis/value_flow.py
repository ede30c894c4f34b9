"""Where the functions and classes of a project go as values, and where they are called.

What a name is bound to is followed from expression to expression: through assignments, attributes,
arguments of the project's own functions, returns, and wrappers such as `tf.function`; whether or
not that code ever runs. It ends where a value is called, or handed to what may call it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator

from tpuctl.preflight.analysis.qualified_names import keras_name
from tpuctl.preflight.analysis.scope_definitions import Definition, Definitions, Key
from tpuctl.preflight.analysis.source import Module
from tpuctl.preflight.analysis.syntax import FUNCTIONS, dotted
from tpuctl.preflight.analysis.tensorflow_calls import WRAPPERS, is_host

__all__ = ["Item", "ValueFlow"]

Item = tuple[Definition, bool]  # a definition, or an object of that class
# What may be asked of a layer without running it.
INERT = {"adapt", "build", "get_config", "get_vocabulary", "summary", "name", "vocabulary_size"}
INERT |= {
    "get_concrete_function",
    "trainable",
    "set_vocabulary",
    "vocabulary",
    "__name__",
    "__class__",
    "__doc__",
}
ADDS = {"append", "add", "insert", "extend"}
ASKS = {"isinstance", "issubclass", "super", "type", "hasattr", "print"}
# An expression of one of these kinds is, or holds, what stands in it.
HOLDS: tuple[type[ast.AST], ...] = (
    ast.List,
    ast.Tuple,
    ast.Set,
    ast.Dict,
    ast.IfExp,
    ast.BoolOp,
    ast.Starred,
)
HOLDS += (ast.NamedExpr, ast.Await, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
# Who only looks at a value, or names its kind.
READS: tuple[type[ast.AST], ...] = (
    ast.Compare,
    ast.If,
    ast.While,
    ast.Assert,
    ast.UnaryOp,
    ast.FormattedValue,
)
READS += (ast.ClassDef, ast.AnnAssign, ast.arg)
LOGS = ("logging.", "absl.logging.")


class ValueFlow:
    """Where definitions go as values, whether or not that code runs."""

    def __init__(self, definitions: Definitions) -> None:
        self.definitions = definitions
        self.uses: dict[ast.AST, set[Item]] = defaultdict(set)  # by the expression that is used
        self.items: dict[Key, set[Item]] = defaultdict(set)
        # By the name of an attribute: what objects of a class hold, and who reads it from them.
        self.attributes: dict[str, dict[ast.ClassDef, set[Item]]] = {}
        self.readers: dict[str, dict[ast.ClassDef, list[tuple[Module, ast.AST]]]] = {}
        self.returned: dict[ast.AST, set[Item]] = defaultdict(set)
        self.called: dict[ast.AST, dict[ast.AST, Module]] = defaultdict(dict)
        self.carried: dict[ast.AST, set[Item]] = defaultdict(set)
        self.waiting: list[tuple[Module, ast.AST, Item]] = []
        self.loads: dict[Key, list[tuple[Module, ast.AST]]] = {}
        self._begin()
        while self.waiting:
            self._follow(*self.waiting.pop())

    def _begin(self) -> None:
        definitions = self.definitions
        for key, definition in definitions.all:
            self._hold(key, (definition, False))
        for name, attributes in definitions.attribute_loads.items():
            for module, node in attributes:
                for owner in self._owners(module, node):
                    self._read_attribute(owner, name, module, node)
        for definition, module in definitions.module_of.items():
            around = module.parents[definition]
            if isinstance(definition, ast.Lambda):
                self._carry(module, definition, (definition, False))
            elif isinstance(around, ast.ClassDef):
                self._hold_attribute(around, definition.name, (definition, False))

    def _carry(self, module: Module, node: ast.AST, item: Item) -> None:
        if item not in self.carried[node]:
            self.carried[node].add(item)
            self.waiting.append((module, node, item))
            if isinstance(node, ast.Attribute) and _is_property(item[0]):
                self.called[item[0]][node] = module
                for returned in list(self.returned[item[0]]):
                    self._carry(module, node, returned)

    def _hold(self, key: Key, item: Item) -> None:
        if item not in self.items[key]:
            self.items[key].add(item)
            if key not in self.loads:
                self.loads[key] = self.definitions.loads_of(key)
            for module, node in self.loads[key]:
                self._carry(module, node, item)

    def _hold_attribute(self, owner: ast.ClassDef, name: str, item: Item) -> None:
        items = self.attributes.setdefault(name, {}).setdefault(owner, set())
        if item not in items:
            items.add(item)
            for reader, loads in self.readers.get(name, {}).items():
                if self._is_kin(owner, reader):
                    for module, node in loads:
                        self._carry(module, node, item)

    def _read_attribute(
        self, owner: ast.ClassDef, name: str, module: Module, node: ast.AST
    ) -> None:
        loads = self.readers.setdefault(name, {}).setdefault(owner, [])
        if (module, node) not in loads:
            loads.append((module, node))
            for holder, items in list(self.attributes.get(name, {}).items()):
                if self._is_kin(owner, holder):
                    for item in list(items):
                        self._carry(module, node, item)

    def _is_kin(self, cls: ast.ClassDef, other: ast.ClassDef) -> bool:
        family_of = self.definitions.family_of
        return cls is other or cls in family_of(other) or other in family_of(cls)

    def _follow(self, module: Module, node: ast.AST, item: Item) -> None:
        """Where an expression's value goes from where it stands."""
        parent = module.parents.get(node)
        if isinstance(parent, ast.keyword):
            node, parent = parent, module.parents.get(parent)
        if isinstance(parent, ast.Call):
            if parent.func is node:
                self._call(module, node, parent, item)
            else:
                self._give(module, node, parent, item)
        elif isinstance(parent, ast.Attribute):
            if isinstance(item[0], ast.ClassDef):
                self._read_attribute(item[0], parent.attr, module, parent)
            if parent.attr not in INERT:
                self._escape(node, item)
        elif isinstance(parent, HOLDS) or getattr(parent, "value", None) is node:
            assert parent is not None
            self._store(module, node, parent, item)
        elif isinstance(parent, (ast.For, ast.comprehension)):
            self._assign(module, parent.target, item)
        elif isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node in parent.decorator_list:
                self.uses[node].add(item)
        elif not isinstance(parent, READS):
            self._escape(node, item)

    def _store(self, module: Module, node: ast.AST, parent: ast.AST, item: Item) -> None:
        """What a part of an expression or a statement makes of its value."""
        if isinstance(parent, (ast.Assign, ast.AnnAssign)):
            owner = module.parents.get(parent)
            for target in parent.targets if isinstance(parent, ast.Assign) else [parent.target]:
                self._assign(module, target, item)
                if isinstance(owner, ast.ClassDef) and isinstance(target, ast.Name):
                    self._hold_attribute(owner, target.id, item)
        elif isinstance(parent, ast.Return):
            self._return(self.definitions.scopes[parent], item)
        elif isinstance(parent, (*HOLDS, ast.Subscript)):
            if isinstance(parent, ast.NamedExpr):
                self._assign(module, parent.target, item)
            self._carry(module, parent, item)
        elif not isinstance(parent, (ast.Expr, ast.FormattedValue)):
            self._escape(node, item)

    def _call(self, module: Module, node: ast.AST, call: ast.Call, item: Item) -> None:
        definition, is_object = item
        self.uses[node].add(item)
        if isinstance(definition, ast.ClassDef) and not is_object:
            self._carry(module, call, (definition, True))
            return
        self.called[definition][call] = module
        for returned in list(self.returned[definition]):
            self._carry(module, call, returned)

    def _escape(self, node: ast.AST, item: Item) -> None:
        """Code that has it may call it, or make objects of it and call those."""
        definition, is_object = item
        is_object = is_object or isinstance(definition, ast.ClassDef)
        self.uses[node].add((definition, is_object))

    def _assign(self, module: Module, target: ast.AST, item: Item) -> None:
        if isinstance(target, ast.Name):
            key = self.definitions.key_of(module, target)
            if key is not None:
                self._hold(key, item)
        elif isinstance(target, ast.Attribute):
            for owner in self._owners(module, target):
                self._hold_attribute(owner, target.attr, item)
        elif isinstance(target, (ast.Subscript, ast.Starred)):
            self._assign(module, target.value, item)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for element in target.elts:
                self._assign(module, element, item)

    def _owners(self, module: Module, node: ast.Attribute) -> Iterable[ast.ClassDef]:
        """The classes whose objects an attribute is of: that around for `self`, for others those
        that assign such an attribute, where no more than one does."""
        if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            owner = module.enclosing_class(node)
            return () if owner is None else (owner,)
        owners = self.definitions.assigned.get(node.attr, ())
        return owners if len(owners) == 1 else ()

    def _return(self, function: ast.AST, item: Item) -> None:
        if item in self.returned[function]:
            return
        self.returned[function].add(item)
        for call, module in list(self.called[function].items()):
            self._carry(module, call, item)

    def _give(self, module: Module, node: ast.AST, call: ast.Call, item: Item) -> None:
        """What becomes of an argument."""
        name = module.names.of(call.func)
        if name in WRAPPERS:
            self._carry(module, call, item)
        elif is_host(module, call):
            self._escape(node.value if isinstance(node, ast.keyword) else node, item)
        elif (name is None and getattr(call.func, "id", "") in ASKS) or (
            name is not None and name.startswith(LOGS)
        ):
            return
        elif isinstance(call.func, ast.Attribute) and call.func.attr in ADDS:
            self._assign(module, call.func.value, item)
        elif (keras_name(name) or "").rpartition(".")[2][:1].isupper():
            self._carry(module, call, item)
        else:
            holders = list(self._parameters(module, node, call))
            for key in holders:
                self._hold(key, item)
            if not holders:
                self._escape(node.value if isinstance(node, ast.keyword) else node, item)

    def _parameters(self, module: Module, node: ast.AST, call: ast.Call) -> Iterator[Key]:
        """The parameters of the project's own functions that an argument is given for."""
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
        plain = [*function.args.posonlyargs, *function.args.args]
        if isinstance(node, ast.keyword):
            names = {parameter.arg for parameter in (*plain, *function.args.kwonlyargs)}
            if node.arg in names and node.arg is not None:
                yield function, node.arg
        elif node in call.args:
            place = call.args.index(node) + skipped
            before = call.args[: call.args.index(node)]
            is_plain = not any(isinstance(value, ast.Starred) for value in before)
            if is_plain and place < len(plain) and not isinstance(node, ast.Starred):
                yield function, plain[place].arg


def _is_property(node: Definition) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any(
        dotted(decorator) in ("property", "functools.cached_property") for decorator in decorators
    )
