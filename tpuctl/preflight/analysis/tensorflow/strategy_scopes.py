"""Finds which models, optimizers, metrics and variables are created in `strategy.scope()`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Literal, NamedTuple

from tpuctl.preflight.analysis.program.callers import calls_of, mentions_of
from tpuctl.preflight.analysis.program.functions import class_of, function_of, keras_bases
from tpuctl.preflight.analysis.program.qualified_names import KERAS, keras_name
from tpuctl.preflight.analysis.program.source import STRATEGY, Module, Project
from tpuctl.preflight.analysis.program.syntax import (
    FUNCTIONS,
    Function,
    dotted,
    identifiers_in,
    own_nodes,
    returns_of,
    words_of,
)
from tpuctl.preflight.analysis.values.host_code import HostCode

Kind = Literal["model", "optimizer", "metric", "variable"]
MODELS = ("Model", "Sequential", "models.Model", "models.Sequential", "models.clone_model")
LOADED = ("models.load_model", "saving.load_model", "models.model_from_json")
SCOPE_WORDS = {"scope", "strategy"}  # in the names of a `with` item that may enter a scope
RUNS = ("run", "experimental_run_v2")


class Creation(NamedTuple):
    """The creation of an object with variables."""

    module: Module
    node: ast.Call  # the call in the code that uses it, such as `create_model()`
    name: str  # the constructor, such as "tensorflow.keras.Sequential"
    is_inside: bool | None  # whether it is in a scope; None if unknown


def tpu_strategies(project: Project) -> list[tuple[Module, ast.Call]]:
    """The calls that create TPU strategies of TensorFlow 2, cached."""
    if tpu_strategies not in project.cache:
        project.cache[tpu_strategies] = [
            (module, call)
            for module in project
            if module.matches(STRATEGY)
            for call in module.calls
            if (name := module.names.of(call.func) or "").endswith(".TPUStrategy")
            and ".contrib." not in name
        ]
    strategies: list[tuple[Module, ast.Call]] = project.cache[tpu_strategies]
    return strategies


class Scopes:
    """Determines which code of a project runs within a strategy's scope."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.host = HostCode.of(project)
        self._active: set[ast.AST] = set()

    def is_entered_elsewhere(self) -> bool:
        """Whether a scope is entered without a `with` block."""
        for module in self.project:
            for call in module.calls:
                if (module.names.of(call.func) or "").endswith("set_strategy"):
                    return True
                if _is_scope(call) and not self._is_entered_by_block(module, call):
                    return True
        return False

    def is_inside(self, module: Module, node: ast.AST) -> bool | None:
        """Whether a node runs within a scope; None if unknown."""
        for ancestor in module.ancestors(node):
            if isinstance(ancestor, ast.With) and any(
                self._enters(module, item) for item in ancestor.items
            ):
                return True
            if isinstance(ancestor, ast.Lambda):
                return None
            if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return self._is_called_inside(module, ancestor)
        return False

    def _is_called_inside(self, module: Module, function: Function) -> bool | None:
        if function in self._active or isinstance(function, ast.Lambda):
            return None
        if self._is_wrapped(module, function):
            return None
        self._active.add(function)
        try:
            calls, is_complete = calls_of(self.project, module, function)
            is_started = self._is_started(module, function)
            states = {self.is_inside(*call) for call in calls}
        finally:
            self._active.discard(function)
        if True in states:
            return True
        if None in states or not (is_complete or is_started) or not (calls or is_started):
            return None
        return False

    def _is_wrapped(self, module: Module, function: Function) -> bool:
        """Whether a decorator of the project wraps the function and might enter a scope."""
        for decorator in getattr(function, "decorator_list", []):
            node = decorator.func if isinstance(decorator, ast.Call) else decorator
            if function_of(self.project, module, node) is not None:
                return True
        return False

    def _is_started(self, module: Module, function: Function) -> bool:
        """Whether the function is an entry point: passed to `app.run`, or a click command."""
        for decorator in getattr(function, "decorator_list", []):
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            name = module.names.of(called) or dotted(called) or ""
            if name.startswith("click.") or name.endswith(".command"):
                return True
        name = getattr(function, "name", "")
        return any(
            where.names.called(parent) == "absl.app.run"
            for where, node in mentions_of(self.project, name)
            if (parent := where.parents.get(node)) is not None
        )

    def _enters(self, module: Module, item: ast.withitem) -> bool:
        """Whether a `with` item enters, or seems to enter, a scope."""
        name = module.names.called(item.context_expr) or ""
        is_other = name.startswith(("tensorflow.", *KERAS)) and "Strategy" not in name
        names = identifiers_in(item.context_expr)
        if not is_other and not SCOPE_WORDS.isdisjoint(words_of(names)):
            return True
        if isinstance(item.context_expr, ast.Call):
            called = item.context_expr.func
            definition = function_of(self.project, module, called) or class_of(
                self.project, module, called
            )
            if definition is not None and any(map(_is_scope, ast.walk(definition[1]))):
                return True
        if isinstance(item.context_expr, ast.Name):
            bindings = self.host.bindings(module, item.context_expr)
            return any(
                binding.value is not None and _is_scope(binding.value) for binding in bindings
            )
        return False

    def _is_entered_by_block(self, module: Module, call: ast.Call) -> bool:
        """Whether a `strategy.scope()` call is a `with` item, is assigned or is returned."""
        for ancestor in module.ancestors(call):
            if isinstance(ancestor, (ast.withitem, ast.Assign)):
                return True
            if isinstance(ancestor, ast.Return):
                return True
            if isinstance(ancestor, ast.stmt) or (
                isinstance(ancestor, ast.Call) and ancestor is not call
            ):
                return False
        return False

    # Creations --------------------------------------------------------------------------------

    def creations(self, module: Module, node: ast.AST | None, kind: Kind) -> list[Creation]:
        """All objects that an expression may refer to; empty if any of them is unknown."""
        if node is None or node in self._active:
            return []
        self._active.add(node)
        try:
            if isinstance(node, ast.Call):
                return self._creations_by_call(module, node, kind)
            values = self.host.assigned_values(module, node)
            creations = [self.creations(module, value, kind) for value in values]
        finally:
            self._active.discard(node)
        return [creation for group in creations for creation in group] if all(creations) else []

    def _creations_by_call(self, module: Module, call: ast.Call, kind: Kind) -> list[Creation]:
        name = self.constructor(module, call, kind)
        if name is not None:
            return [Creation(module, call, name, self.is_inside(module, call))]
        definition = function_of(self.project, module, call.func)
        if (
            definition is None
            or isinstance(definition[1], ast.Lambda)
            or self._is_wrapped(*definition)
        ):
            return []
        where, function = definition[0], definition[1]
        inner: list[Creation] = []
        for statement in returns_of(function):
            creations = self.creations(where, statement.value, kind)
            if not creations:
                return []
            inner += creations
        outside = self.is_inside(module, call)
        return [
            Creation(
                module,
                call,
                creation.name,
                True if self._is_created_in_scope(creation, function) else outside,
            )
            for creation in inner
        ]

    def _is_created_in_scope(self, creation: Creation, function: Function) -> bool:
        """Whether the function itself enters a scope around the creation."""
        for ancestor in creation.module.ancestors(creation.node):
            if ancestor is function:
                return False
            items = ancestor.items if isinstance(ancestor, ast.With) else []
            if any(self._enters(creation.module, item) for item in items):
                return True
        return bool(creation.is_inside)

    def constructor(self, module: Module, call: ast.Call, kind: Kind) -> str | None:
        """The qualified name of the constructor, if the call creates such an object."""
        name = module.names.of(call.func) or ""
        keras = keras_name(name) or ""
        last = keras.rpartition(".")[2]
        if kind == "variable":
            return name if name == "tensorflow.Variable" else None
        if kind == "metric":
            return name if keras.startswith("metrics.") and last[:1].isupper() else None
        if kind == "optimizer":
            is_optimizer = keras.startswith("optimizers.") and ".schedules." not in keras
            return name if is_optimizer and (last[:1].isupper() or last == "get") else None
        if keras in (*MODELS, *LOADED) or (
            keras.startswith("applications.") and last[:1].isupper()
        ):
            return name
        if name.startswith("transformers.TF") and name.endswith(
            (".from_pretrained", ".from_config")
        ):
            return "tf_keras.Model"
        owner = class_of(self.project, module, call.func)
        for base in keras_bases(self.project, *owner) if owner is not None else ():
            if keras_name(base) in MODELS:
                return base
        return None

    # Replicas ---------------------------------------------------------------------------------

    def replica_functions(self) -> Iterator[tuple[Module, Function]]:
        """Functions passed to `strategy.run`, and the project's functions that they call."""
        pending = []
        for module in self.project:
            for call in module.calls:
                is_run = isinstance(call.func, ast.Attribute) and call.func.attr in RUNS
                if is_run and call.args and module.names.of(call.func) is None:
                    pending.append(function_of(self.project, module, call.args[0]))
        seen: set[Function] = set()
        while pending:
            definition = pending.pop()
            if definition is None or definition[1] in seen:
                continue
            seen.add(definition[1])
            yield definition
            module = definition[0]
            for part in own_nodes(definition[1]):
                if isinstance(part, ast.Call):
                    pending.append(function_of(self.project, module, part.func))
                elif isinstance(part, FUNCTIONS):
                    pending.append((module, part))


def _is_scope(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr == "scope" and not node.args
