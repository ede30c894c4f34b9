"""What is made within `strategy.scope()`, and what outside of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tpuctl.preflight.analysis.callers import Callers
from tpuctl.preflight.analysis.constants import Constants
from tpuctl.preflight.analysis.functions import class_of, function_of, keras_bases
from tpuctl.preflight.analysis.qualified_names import keras_name
from tpuctl.preflight.analysis.source import Module, Project
from tpuctl.preflight.analysis.syntax import FUNCTIONS, Function, own_nodes, returns_of

__all__ = ["Creation", "Kind", "Scopes", "tpu_strategies"]

Kind = Literal["model", "optimizer", "metric", "variable"]
MODELS = ("Model", "Sequential", "models.Model", "models.Sequential", "models.clone_model")
LOADED = ("models.load_model", "saving.load_model", "models.model_from_json")
WORDS = ("scope", "strategy")  # in the name of what may enter a scope
RUNS = ("run", "experimental_run_v2")


@dataclass(frozen=True)
class Creation:
    """Something that has variables, and where it is made."""

    module: Module
    node: ast.Call  # as the code that needs it made it: `create_model()`
    name: str  # what makes it, such as "tensorflow.keras.Sequential"
    is_inside: bool | None  # of a scope; None if unknown


def tpu_strategies(project: Project) -> list[tuple[Module, ast.Call]]:
    """Where strategies for TPUs are made."""
    return [
        (module, call)
        for module in project
        for call in module.calls
        if (module.names.of(call.func) or "").endswith(".TPUStrategy")
    ]


class Scopes:
    """Looks through one project."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.constants = Constants.of(project)
        self.callers: Callers = self.constants.callers
        self._busy: set[ast.AST] = set()

    def is_entered_elsewhere(self) -> bool:
        """Whether a scope is entered in a way that no block shows."""
        for module in self.project:
            for call in module.calls:
                if (module.names.of(call.func) or "").endswith("set_strategy"):
                    return True
                if _is_scope(call) and not self._is_of_block(module, call):
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
        if function in self._busy or isinstance(function, ast.Lambda):
            return None
        if self._is_wrapped(module, function):
            return None
        self._busy.add(function)
        try:
            calls, is_all = self.callers.calls_of(module, function)
            is_started = self._is_started(module, function)
            states = {self.is_inside(*call) for call in calls}
        finally:
            self._busy.discard(function)
        if True in states:
            return True
        if None in states or not (is_all or is_started) or not (calls or is_started):
            return None
        return False

    def _is_wrapped(self, module: Module, function: Function) -> bool:
        """Whether a function of the project's own stands around it, which may enter a scope."""
        for decorator in getattr(function, "decorator_list", []):
            node = decorator.func if isinstance(decorator, ast.Call) else decorator
            if function_of(self.project, module, node) is not None:
                return True
        return False

    def _is_started(self, module: Module, function: Function) -> bool:
        """Whether it is what the script starts with: given to `app.run`, or a command."""
        for decorator in getattr(function, "decorator_list", []):
            name = module.names.called(decorator) or ""
            if name.startswith("click.") or module.segment(decorator).endswith(".command()"):
                return True
        name = getattr(function, "name", "")
        return any(
            where.names.called(parent) == "absl.app.run"
            for where, node in self.callers.mentions.get(name, ())
            if (parent := where.parents.get(node)) is not None
        )

    def _enters(self, module: Module, item: ast.withitem) -> bool:
        """Whether a block may be within a scope; what only looks so counts."""
        text = module.segment(item.context_expr).lower()
        if any(word in text for word in WORDS):
            return True
        if isinstance(item.context_expr, ast.Call):
            called = item.context_expr.func
            definition = function_of(self.project, module, called) or class_of(
                self.project, module, called
            )
            if definition is not None and ".scope()" in definition[0].segment(definition[1]):
                return True
        if isinstance(item.context_expr, ast.Name):
            bindings = self.constants.bindings(module, item.context_expr)
            return any(
                binding.value is not None and _is_scope(binding.value) for binding in bindings
            )
        return False

    def _is_of_block(self, module: Module, call: ast.Call) -> bool:
        """Whether `strategy.scope()` is what a block is entered with, or is given a name first."""
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

    # What is made -----------------------------------------------------------------------------

    def creations(self, module: Module, node: ast.AST | None, kind: Kind) -> list[Creation]:
        """All that an expression may stand for; empty where one of it is not seen."""
        if node is None or node in self._busy:
            return []
        self._busy.add(node)
        try:
            if isinstance(node, ast.Call):
                return self._creations_by_call(module, node, kind)
            values = self.constants.assigned_values(module, node)
            creations = [self.creations(module, value, kind) for value in values]
        finally:
            self._busy.discard(node)
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
                True if self._is_within(creation, function) else outside,
            )
            for creation in inner
        ]

    def _is_within(self, creation: Creation, function: Function) -> bool:
        """Whether the function itself enters a scope for what it makes."""
        for ancestor in creation.module.ancestors(creation.node):
            if ancestor is function:
                return False
            items = ancestor.items if isinstance(ancestor, ast.With) else []
            if any(self._enters(creation.module, item) for item in items):
                return True
        return bool(creation.is_inside)

    def constructor(self, module: Module, call: ast.Call, kind: Kind) -> str | None:
        """The name of what makes such a thing, if that is what is called."""
        name = module.names.of(call.func) or ""
        keras = keras_name(name) or ""
        last = keras.rpartition(".")[2]
        if kind == "variable":
            return name if name == "tensorflow.Variable" else None
        if kind == "metric":
            return name if keras.startswith("metrics.") and last[:1].isupper() else None
        if kind == "optimizer":
            is_one = keras.startswith("optimizers.") and ".schedules." not in keras
            return name if is_one and (last[:1].isupper() or last == "get") else None
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

    # What replicas run ------------------------------------------------------------------------

    def replica_functions(self) -> Iterator[tuple[Module, Function]]:
        """Functions given to `strategy.run`, and those of the project that they call."""
        waiting = []
        for module in self.project:
            for call in module.calls:
                is_run = isinstance(call.func, ast.Attribute) and call.func.attr in RUNS
                if is_run and call.args and module.names.of(call.func) is None:
                    waiting.append(function_of(self.project, module, call.args[0]))
        seen: set[Function] = set()
        while waiting:
            definition = waiting.pop()
            if definition is None or definition[1] in seen:
                continue
            seen.add(definition[1])
            yield definition
            module = definition[0]
            for part in own_nodes(definition[1]):
                if isinstance(part, ast.Call):
                    waiting.append(function_of(self.project, module, part.func))
                elif isinstance(part, FUNCTIONS):
                    waiting.append((module, part))


def _is_scope(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr == "scope" and not node.args
