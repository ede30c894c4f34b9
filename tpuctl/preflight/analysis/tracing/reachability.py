"""Finds the functions that a run of the script reaches, and those that only pipelines call.

Starts with the top-level code of the script and its imports and follows their calls. Methods are
reached by name once their class is instantiated. Functions that are only registered by a
decorator are not reached.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import Flag, auto

from tpuctl.preflight.analysis.program.control_flow import is_main_guard
from tpuctl.preflight.analysis.program.functions import keras_bases, library_bases
from tpuctl.preflight.analysis.program.scope_definitions import Definitions, Method, is_super
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import FUNCTIONS, Function, dotted
from tpuctl.preflight.analysis.program.tensorflow_calls import KERAS_METHODS
from tpuctl.preflight.analysis.program.wrappers import WRAPPERS
from tpuctl.preflight.analysis.tracing.host_functions import is_host
from tpuctl.preflight.analysis.tracing.value_flow import Item, ValueFlow

PLAIN_BASES = ("object", "ABC", "abc.ABC", "Protocol", "NamedTuple", "Enum", "enum.Enum")

# Nodes of which not simply all parts are reached, or that reach more.
SPECIAL_NODES = {*FUNCTIONS, ast.ClassDef, ast.AnnAssign, ast.Attribute, ast.Call}


class Caller(Flag):
    """Where a function is called from."""

    NONE = 0
    SCRIPT = auto()
    PIPELINE = auto()


def reachability_of(project: Project) -> Reachability:
    """The reachability of a project's functions, cached."""
    if "reachability" not in project.cache:
        project.cache["reachability"] = Reachability(project)
    reachability: Reachability = project.cache["reachability"]
    return reachability


class Reachability:
    """The callers of all functions of a project."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.definitions = Definitions.of(project)
        self.flow = ValueFlow(self.definitions)
        self.callers: dict[ast.AST, Caller] = defaultdict(lambda: Caller.NONE)
        self.methods: dict[str, set[Function]] = defaultdict(set)  # methods of instantiated classes
        self.library_bases: dict[ast.ClassDef, tuple[bool, bool]] = {}
        self.instantiated: set[ast.ClassDef] = set()
        self.mentioned: dict[str, Caller] = defaultdict(lambda: Caller.NONE)
        self.pending: list[tuple[Module, list[ast.AST], Caller]] = []
        self._start()

    def of(self, module: Module, node: ast.AST) -> Caller:
        """Where a function, or the function around another node, is called from."""
        if not isinstance(node, FUNCTIONS):
            node = self.definitions.scopes.get(node, module.tree)
        return Caller.SCRIPT if isinstance(node, ast.Module) else self.callers[node]

    # Traversal --------------------------------------------------------------------------------

    def _start(self) -> None:
        for module in self.project:
            body = [
                statement
                for statement in module.tree.body
                if module in self.project.programs or not is_main_guard(statement)
            ]
            self.pending.append((module, list(body), Caller.SCRIPT))
        for script in self.project.programs:
            for function in self._functions(script):  # commands of Typer, click, Hydra
                if any(
                    _decorated(script, decorator) not in WRAPPERS
                    for decorator in _decorators(function)
                ):
                    self._call(function, Caller.SCRIPT)
        self._run()

    def treat_as_libraries(self, modules: Iterable[Module]) -> bool:
        """Treat the scripts that use none of these modules as libraries: functions that they never
        call are called by others. Returns whether there are any.
        """
        reached = {*modules}
        programs = self.project.programs.items()
        libraries = {script.tree for script, parts in programs if reached.isdisjoint(parts)}
        for key, items in list(self.flow.items.items()):
            if key[0] in libraries and not self.flow.loads[key]:
                for definition, is_object in items:
                    if not is_object and not isinstance(definition, ast.ClassDef):
                        self._call(definition, Caller.SCRIPT)
        self._run()
        return bool(libraries)

    def _functions(self, module: Module) -> Iterator[Function]:
        for (scope, _), definition in self.definitions.defined.items():
            if scope is module.tree and isinstance(definition, FUNCTIONS):
                yield definition

    def _run(self) -> None:
        while self.pending:
            module, body, caller = self.pending.pop()
            while body:
                body += self._visited(module, body.pop(), caller)

    def _visited(self, module: Module, node: ast.AST, caller: Caller) -> Iterable[ast.AST]:
        """Record what a reached node uses; return the child nodes that are reached too."""
        for item in self.flow.uses.get(node, ()):
            self._use(item, caller)
        if node.__class__ not in SPECIAL_NODES:  # as most
            return module.parts.get(node, ())
        if isinstance(node, ast.Lambda):
            return ()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            heads = [
                decorator.func if isinstance(decorator, ast.Call) else decorator
                for decorator in node.decorator_list
            ]
            return [*heads, *node.args.defaults, *filter(None, node.args.kw_defaults)]
        if isinstance(node, ast.ClassDef):
            return list(node.body)
        if isinstance(node, ast.AnnAssign):
            return [node.target, *filter(None, [node.value])]
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            if is_super(node.value):
                self._inherited(module, node, caller)
            elif not self._is_exported(module, node):
                self._mention(node.attr, caller)
        elif isinstance(node, ast.Call) and is_host(self.project, module, node):
            parts = [*node.args, *(keyword.value for keyword in node.keywords)]
            self.pending.append((module, list(parts), Caller.PIPELINE))
            return [node.func]
        return module.parts.get(node, ())

    def _is_exported(self, module: Module, node: ast.AST) -> bool:
        """Whether a method is only exported, or made concrete, not run."""
        if getattr(module.parents.get(node), "attr", "") == "get_concrete_function":
            return True
        values = {definition for definition, _ in self.flow.carried.get(node, ())}
        return bool(values) and values <= self.flow.exported and node not in self.flow.uses

    def _use(self, item: Item, caller: Caller) -> None:
        definition, is_object = item
        if not isinstance(definition, ast.ClassDef):
            self._call(definition, caller)
            return
        self._instantiate(definition, caller)
        if is_object:
            for method in self.definitions.methods_of(definition):
                if self._is_called_by_library(definition, method):
                    self._call(method, caller)

    def _call(self, function: Function, caller: Caller) -> None:
        new = caller & ~self.callers[function]
        if new:
            self.callers[function] |= new
            body = [function.body] if isinstance(function, ast.Lambda) else list(function.body)
            self.pending.append((self.definitions.module_of[function], list(body), new))

    def _instantiate(self, owner: ast.ClassDef, caller: Caller) -> None:
        for method in self.definitions.methods_of(owner):
            if method.name in ("__init__", "__new__", "__post_init__", "build", "setup"):
                self._call(method, caller)
        if owner in self.instantiated:
            return
        self.instantiated.add(owner)
        for method in self.definitions.methods_of(owner):
            if not self._is_called_by_library(owner, method):
                self.methods[method.name].add(method)
                self._call(method, self.mentioned[method.name])

    def _mention(self, name: str, caller: Caller) -> None:
        new = caller & ~self.mentioned[name]
        if new:
            self.mentioned[name] |= new
            for method in list(self.methods[name]):
                self._call(method, new)

    def _inherited(self, module: Module, node: ast.Attribute, caller: Caller) -> None:
        owner = module.enclosing_class(node)
        for base in self.definitions.family_of(owner)[1:] if owner is not None else ():
            for method in self.definitions.methods_of(base):
                if method.name == node.attr:
                    self._call(method, caller)

    def _is_called_by_library(self, owner: ast.ClassDef, method: Method) -> bool:
        """Whether a library calls this method of an object that it receives: Keras calls its own
        methods, others may call methods that the project never uses by name. TensorFlow and Keras
        save further tf.functions, but do not call them."""
        name = method.name
        if owner not in self.library_bases:
            family = [
                (self.definitions.module_of[cls], cls) for cls in self.definitions.family_of(owner)
            ]
            is_foreign = any(
                self.definitions.class_of(module, base) is None and dotted(base) not in PLAIN_BASES
                for module, cls in family
                for base in cls.bases
            )
            is_keras = next(keras_bases(self.project, *family[0]), None) is not None
            self.library_bases[owner] = is_keras, is_foreign
        is_keras, is_foreign = self.library_bases[owner]
        if name.startswith("__") or (is_keras and name in KERAS_METHODS):
            return True
        module = self.definitions.module_of[method]
        is_program = any(
            _decorated(module, decorator) == "tensorflow.function"
            for decorator in method.decorator_list
        )
        is_saved = is_program and (is_keras or self._is_module(owner))
        return is_foreign and name not in self.definitions.attribute_loads and not is_saved

    def _is_module(self, owner: ast.ClassDef) -> bool:
        module = self.definitions.module_of[owner]
        return "tensorflow.Module" in library_bases(self.project, module, owner)


def _decorators(node: Function) -> list[ast.expr]:
    return [] if isinstance(node, ast.Lambda) else node.decorator_list


def _decorated(module: Module, node: ast.expr) -> str | None:
    """The qualified name of a decorator; for a partial, that of its function."""
    if isinstance(node, ast.Call):
        name = module.names.of(node.func)
        if name == "functools.partial" and node.args:
            return module.names.of(node.args[0])
        return name
    return module.names.of(node)
