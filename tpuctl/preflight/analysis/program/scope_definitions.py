"""Scopes in which a project's names are bound, and the nodes that read them."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import FUNCTIONS, dotted

DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
SCOPES = frozenset(FUNCTIONS)
RARE = frozenset((*DEFINITIONS, ast.Global, ast.Nonlocal))
Method = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
Key = tuple[ast.AST, str]  # a function or module, and a name in it


class Definitions:
    """The functions and classes of a project, by scope and name."""

    @classmethod
    def of(cls, project: Project) -> Definitions:
        """The instance of a project, shared by all rules."""
        definitions = project.cache.get(cls)
        if not isinstance(definitions, Definitions):
            definitions = project.cache[cls] = cls(project)
        return definitions

    def __init__(self, project: Project) -> None:
        self.project = project
        self.module_of: dict[Definition, Module] = {}
        self.scopes: dict[ast.AST, ast.AST] = {}  # the function or module around each node
        self.bound: set[Key] = set()
        self.defined: dict[Key, Definition] = {}  # the last definition of each name
        self.all: list[tuple[Key, Definition]] = []
        self.loads: dict[str, list[tuple[Module, ast.Name]]] = defaultdict(list)
        self.attribute_loads: dict[str, list[tuple[Module, ast.Attribute]]] = defaultdict(list)
        self.assigned: dict[str, set[ast.ClassDef]] = defaultdict(set)  # classes by attribute name
        self.aliases: dict[str, set[str]] = defaultdict(set)  # import aliases of each name
        self._keyed_loads: dict[str, dict[Key | None, list[tuple[Module, ast.AST]]]] = {}
        self._named_keys: dict[str, Key | None] = {}
        self._families: dict[ast.ClassDef, list[ast.ClassDef]] = {}
        for module in project:
            self._add(module)

    def _add(self, module: Module) -> None:
        scopes = self.scopes
        scopes[module.tree] = module.tree
        declared_elsewhere: list[Key] = []
        for node, parent in module.parents.items():
            scopes[node] = scope = parent if parent.__class__ in SCOPES else scopes[parent]
            kind = node.__class__
            if kind is ast.Name:
                self._record_name(module, node, scope)  # type: ignore[arg-type]
            elif kind is ast.Attribute:
                self._record_attribute(module, node)  # type: ignore[arg-type]
            elif kind is ast.arg:
                assert isinstance(node, ast.arg)
                self.bound.add((scope, node.arg))
            elif kind not in RARE:
                pass
            elif isinstance(node, (ast.Global, ast.Nonlocal)):
                declared_elsewhere += [(scope, name) for name in node.names]
                if isinstance(node, ast.Global):
                    self.bound.update((module.tree, name) for name in node.names)
            elif isinstance(node, DEFINITIONS):
                self._define(module, node, scope)
        self.bound.difference_update(declared_elsewhere)
        for alias, name in module.names.imports.items():
            last = name.rpartition(".")[2]
            if alias != last:
                self.aliases[last].add(alias)

    def _record_name(self, module: Module, node: ast.Name, scope: ast.AST) -> None:
        if isinstance(node.ctx, ast.Load):
            self.loads[node.id].append((module, node))
        else:
            self.bound.add((scope, node.id))
            self._assign(module.parents[module.parents[node]], node.id)

    def _record_attribute(self, module: Module, node: ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            if dotted(node.value) == "self":
                self._assign(module.enclosing_class(node), node.attr)
        elif not is_super(node.value):
            self.attribute_loads[node.attr].append((module, node))

    def _define(self, module: Module, node: Definition, scope: ast.AST) -> None:
        self.module_of[node] = module
        if isinstance(node, ast.Lambda):
            return
        parent = module.parents[node]
        if isinstance(parent, ast.ClassDef):
            self._assign(parent, node.name)
        else:
            self.defined[scope, node.name] = node
            self.all.append(((scope, node.name), node))
            self.bound.add((scope, node.name))

    def _assign(self, owner: ast.AST | None, name: str) -> None:
        if isinstance(owner, ast.ClassDef):
            self.assigned[name].add(owner)

    def loads_of(self, key: Key) -> list[tuple[Module, ast.AST]]:
        """The nodes that read a binding, as a name or an attribute of a module."""
        names = [key[1]]
        loads: list[tuple[Module, ast.AST]] = []
        for name in names:  # grows during iteration
            names += [alias for alias in self.aliases.get(name, ()) if alias not in names]
            loads += self._loads_by_key(name).get(key, ())
        return loads

    def _loads_by_key(self, name: str) -> dict[Key | None, list[tuple[Module, ast.AST]]]:
        """The nodes with a name by what they refer to, which is found once for each node."""
        if name not in self._keyed_loads:
            by_key: dict[Key | None, list[tuple[Module, ast.AST]]] = defaultdict(list)
            for module, node in (*self.loads.get(name, ()), *self.attribute_loads.get(name, ())):
                by_key[self.key_of(module, node)].append((module, node))
            self._keyed_loads[name] = by_key
        return self._keyed_loads[name]

    def key_of(self, module: Module, node: ast.AST) -> Key | None:
        """The binding that an expression refers to."""
        if isinstance(node, ast.Name):
            scope = self.scopes[node]
            while not isinstance(scope, ast.Module):
                if (scope, node.id) in self.bound:
                    return scope, node.id
                scope = self.scopes[scope]
            key = (module.tree, node.id)
            if key in self.defined:
                return key
            imported = self._imported(module, node.id)
            return imported or (key if key in self.bound else None)
        if isinstance(node, ast.Attribute) and (name := module.names.of(node)) is not None:
            return self._named_key(name)
        return None

    def _imported(self, module: Module, name: str) -> Key | None:
        imported = module.names.imports.get(name)
        key = self._named_key(imported) if imported is not None else None
        for star in module.names.stars if key is None else ():
            key = key or self._named_key(f"{star}.{name}")
        return key

    def _named_key(self, name: str) -> Key | None:
        """The binding of a qualified name in the project, followed through re-exports."""
        cache = self._named_keys
        if name not in cache:
            cache[name] = None  # for circular imports
            where, _, last = name.rpartition(".")
            module = self.project.modules.get(where)
            if module is not None:
                key = (module.tree, last)
                imported = module.names.imports.get(last)
                if key in self.defined or (key in self.bound and imported is None):
                    cache[name] = key
                elif imported is not None and imported != name:
                    cache[name] = self._named_key(imported)
                else:
                    cache[name] = self._imported(module, last)
        return cache[name]

    def methods_of(self, owner: ast.ClassDef) -> Iterator[Method]:
        for base in self.family_of(owner):
            for part in base.body:
                if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield part

    def family_of(self, owner: ast.ClassDef) -> list[ast.ClassDef]:
        """A class and its base classes in the project."""
        if owner not in self._families:
            family = [owner]
            for cls in family:  # grows during iteration
                bases = (self.class_of(self.module_of[cls], base) for base in cls.bases)
                family += [base for base in bases if base is not None and base not in family]
            self._families[owner] = family
        return self._families[owner]

    def class_of(self, module: Module, node: ast.AST) -> ast.ClassDef | None:
        key = self.key_of(module, node)
        definition = self.defined.get(key) if key is not None else None
        return definition if isinstance(definition, ast.ClassDef) else None


def is_super(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func) == "super"
