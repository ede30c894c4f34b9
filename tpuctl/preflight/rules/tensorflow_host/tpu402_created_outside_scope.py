"""TPU402 created-outside-scope."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.functions import is_legacy_keras
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument, elements_of, own_nodes
from tpuctl.preflight.analysis.source_findings import finding_at
from tpuctl.preflight.analysis.tensorflow.strategy_scopes import (
    Creation,
    Kind,
    Scopes,
    tpu_strategies,
)
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import CONNECT

RULE = Rule(
    code="TPU402",
    name="created-outside-scope",
    severity=Severity.error,
    summary="Model, optimizer, metric or variable created outside `strategy.scope()`",
    rationale=(
        "Variables stay on the device where they were created. Outside the scope they are created "
        "on the host, where replicas cannot access them; a model that is created, compiled and "
        "fitted outside the scope silently trains on the host's CPU."
    ),
    bad=CONNECT
    + """
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
with strategy.scope():
    model.compile(optimizer="adam", loss="mse")
""",
    good=CONNECT
    + """
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
""",
)


def find(project: Project, target: Target) -> Iterator[Finding]:
    if tpu_strategies(project):
        yield from _Outside(project, target).find()


class _Outside:
    """Finds objects with variables that are created outside a scope and used on the TPU."""

    def __init__(self, project: Project, target: Target) -> None:
        self.project, self.target = project, target
        self.scopes = Scopes(project)
        self.reported: set[ast.AST] = set()

    def find(self) -> Iterator[Finding]:
        if self.scopes.is_entered_elsewhere():
            return
        for module in self.project:
            for call in module.calls:
                if isinstance(call.func, ast.Attribute) and module.names.of(call.func) is None:
                    if call.func.attr == "compile":
                        yield from self._compiled(module, call)
                    elif call.func.attr in ("fit", "train_on_batch"):
                        yield from self._fitted(module, call.func.value)
        for module, function in self.scopes.replica_functions():
            for node in own_nodes(function):
                if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                    yield from self._used_by_replicas(module, node)

    def _compiled(self, module: Module, call: ast.Call) -> Iterator[Finding]:
        assert isinstance(call.func, ast.Attribute)
        model = self.scopes.creations(module, call.func.value, "model")
        if _are_outside(model):
            yield from self._report(model, "the model")
            return
        if not model or not all(creation.is_inside for creation in model):
            return
        optimizer = argument(call, 0, "optimizer")
        outside = self.scopes.creations(module, optimizer, "optimizer")
        is_outside = self.scopes.is_inside(module, call) is False
        if (
            is_outside
            and _is_created_in_call(optimizer, call)
            and not self._is_legacy(model[0].name)
        ):
            if call not in self.reported:
                self.reported.add(call)
                text = "the model is created in the strategy's scope but compiled outside it"
                hint = "Compile it within `with strategy.scope():`."
                yield finding_at(RULE, module, call, text, hint)
            return
        if _are_outside(outside) and self._has_variables(outside[0].name):
            yield from self._report(outside, "the optimizer")
        for name in ("metrics", "weighted_metrics"):
            for metric in elements_of(argument(call, 2 if name == "metrics" else -1, name)):
                creations = self.scopes.creations(module, metric, "metric")
                if _are_outside(creations):
                    yield from self._report(creations, "the metric")

    def _fitted(self, module: Module, node: ast.expr) -> Iterator[Finding]:
        creations = self.scopes.creations(module, node, "model")
        if _are_outside(creations):
            yield from self._report(creations, "the model")

    def _used_by_replicas(self, module: Module, node: ast.expr) -> Iterator[Finding]:
        """Report objects that replicas use but that are created outside the scope."""
        kinds: dict[Kind, str] = {
            "model": "the model",
            "optimizer": "the optimizer",
            "metric": "the metric",
            "variable": "the variable",
        }
        for kind, noun in kinds.items():
            creations = self.scopes.creations(module, node, kind)
            if not _are_outside(creations):
                continue
            if kind != "optimizer" or self._has_variables(creations[0].name):
                yield from self._report(creations, noun)

    def _report(self, creations: list[Creation], noun: str) -> Iterator[Finding]:
        for creation in creations:
            if creation.node not in self.reported:
                self.reported.add(creation.node)
                text = f"{noun} is created outside the strategy's scope"
                hint = "Create it within `with strategy.scope():`."
                yield finding_at(RULE, creation.module, creation.node, text, hint)

    def _is_legacy(self, name: str) -> bool:
        return is_legacy_keras(self.project, name, self.target)

    def _has_variables(self, name: str) -> bool:
        """Whether such an optimizer creates its variables at once: in Keras 2 it does not."""
        return not self._is_legacy(name)


def _are_outside(creations: list[Creation]) -> bool:
    return bool(creations) and all(creation.is_inside is False for creation in creations)


def _is_created_in_call(optimizer: ast.expr | None, call: ast.Call) -> bool:
    """Whether the optimizer is created in the `compile` call, or given as a string."""
    if optimizer is None or isinstance(optimizer, ast.Constant):
        return not any(keyword.arg is None for keyword in call.keywords)
    return isinstance(optimizer, ast.Call)
