"""TPU404 batch-not-divisible."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.functions import function_of, is_legacy_keras
from tpuctl.preflight.analysis.program.qualified_names import keras_name
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument, returns_of
from tpuctl.preflight.analysis.source_findings import finding_at
from tpuctl.preflight.analysis.tensorflow.strategy_scopes import Scopes, tpu_strategies
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import CONNECT

RULE = Rule(
    code="TPU404",
    name="batch-not-divisible",
    severity=Severity.error,
    summary="Global batch size is not divisible by the number of replicas",
    rationale=(
        "Each replica processes an equal share of the batch. If the shares would differ, `fit` in "
        "Keras 3 or TensorFlow 2.1 and `get_per_replica_batch_size` raise an error; other loops "
        "run with shares of different shapes, which costs memory and time. Choose the batch size "
        "per replica and multiply it by the number of replicas."
    ),
    bad=CONNECT
    + """
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
model.fit(tf.ones([1000, 4]), tf.ones([1000, 1]), batch_size=100)
""",
    good=CONNECT
    + """
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
batch_size = 16 * strategy.num_replicas_in_sync
model.fit(tf.ones([1024, 4]), tf.ones([1024, 1]), batch_size=batch_size)
""",
    target=Target(replicas=8),
)

BATCH_METHODS = ("batch", "padded_batch")
DISTRIBUTE = "experimental_distribute_dataset"
PER_REPLICA = "get_per_replica_batch_size"
HINT = "Multiply the batch size per replica: batch_size = 16 * strategy.num_replicas_in_sync"


def find(project: Project, target: Target) -> Iterator[Finding]:
    """Yield batches that replicas cannot share equally; none if the replica count is unknown."""
    if target.replicas is not None and target.replicas > 1 and tpu_strategies(project):
        yield from _Search(project, target, target.replicas).find()


class _Search:
    def __init__(self, project: Project, target: Target, replicas: int) -> None:
        self.project, self.target, self.replicas = project, target, replicas
        self.host = HostCode.of(project)
        self.scopes = Scopes(project)
        self.active: set[ast.AST] = set()

    def find(self) -> Iterator[Finding]:
        for module in self.project:
            for call in module.calls:
                if not isinstance(call.func, ast.Attribute):
                    continue
                if call.func.attr == "fit" and module.names.of(call.func) is None:
                    yield from self._fitted(module, call, call.func.value)
                elif call.func.attr == DISTRIBUTE:
                    yield from self._distributed(module, call, Severity.cost)
                elif call.func.attr == PER_REPLICA:
                    yield from self._check_size(module, argument(call, 0, "global_batch_size"))

    def _fitted(self, module: Module, call: ast.Call, model: ast.expr) -> Iterator[Finding]:
        creations = self.scopes.creations(module, model, "model")
        if not any(creation.is_inside for creation in creations):
            return
        severity = Severity.error if self._raises(creations[0].name) else Severity.cost
        size = argument(call, 2, "batch_size")
        if size is not None:
            yield from self._check_size(module, size, severity)
        else:
            yield from self._distributed(module, call, severity)

    def _raises(self, name: str) -> bool:
        """Whether `fit` of that Keras version raises an error."""
        version = self.target.version
        is_first = version is not None and version < (2, 2)
        is_keras = keras_name(name) is not None
        return is_first or (is_keras and not is_legacy_keras(self.project, name, self.target))

    def _distributed(self, module: Module, call: ast.Call, severity: Severity) -> Iterator[Finding]:
        dataset = call.args[0] if call.args else argument(call, 0, "x")
        batches = list(self._batches(module, dataset))
        if len(batches) == 1:
            where, batch_call = batches[0]
            yield from self._check_size(where, argument(batch_call, 0, "batch_size"), severity)

    def _check_size(
        self, module: Module, size: ast.expr | None, severity: Severity = Severity.error
    ) -> Iterator[Finding]:
        values = self.host.numbers(module, size)
        sizes = [value.value for value in values if isinstance(value.value, int)]
        if size is None or not sizes or any(number % self.replicas == 0 for number in sizes):
            return
        option = next((value.option for value in values if value.option), "")
        unless = f" unless {option} is set" if option else ""
        text = f"a batch of {sizes[0]} cannot be shared equally by {self.replicas} replicas{unless}"
        if not all(value.is_certain for value in values):
            severity = Severity.risk
        yield finding_at(RULE, module, size, text, HINT, severity=severity)

    def _batches(self, module: Module, node: ast.expr | None) -> Iterator[tuple[Module, ast.Call]]:
        """The calls that batch a dataset, followed back from where it is used."""
        if node is None or node in self.active:
            return
        self.active.add(node)
        try:
            if isinstance(node, (ast.Name, ast.Attribute)):
                for value in self.host.assigned_values(module, node):
                    yield from self._batches(module, value)
            elif isinstance(node, ast.Call):
                yield from self._batches_of_call(module, node)
        finally:
            self.active.discard(node)

    def _batches_of_call(self, module: Module, call: ast.Call) -> Iterator[tuple[Module, ast.Call]]:
        is_method = isinstance(call.func, ast.Attribute) and module.names.of(call.func) is None
        if is_method and isinstance(call.func, ast.Attribute):
            if call.func.attr == "unbatch":
                return
            if call.func.attr in BATCH_METHODS:
                yield module, call
        definition = function_of(self.project, module, call.func)
        if definition is not None:
            for statement in returns_of(definition[1]):
                yield from self._batches(definition[0], statement.value)
        elif is_method and isinstance(call.func, ast.Attribute):
            yield from self._batches(module, call.func.value)
