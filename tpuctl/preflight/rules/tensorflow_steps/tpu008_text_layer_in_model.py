"""TPU008 text-layer-in-model."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.qualified_names import keras_name
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import Function, elements_of
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tensorflow.strategy_scopes import (
    Creation,
    Scopes,
    tpu_strategies,
)
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import CONNECT

LAYER = (
    CONNECT
    + """
texts = tf.constant(["good", "bad"] * 64)
data = tf.data.Dataset.from_tensor_slices((texts, tf.ones([128])))
with strategy.scope():
    lookup = tf.keras.layers.StringLookup(vocabulary=["good", "bad"])
"""
)
END = """\
    model.compile("adam", "mse")
model.fit(data.batch(64, drop_remainder=True))
"""

RULE = Rule(
    code="TPU008",
    name="text-layer-in-model",
    severity=Severity.error,
    summary="Keras model that is trained on a TPU contains a layer for texts",
    rationale=(
        "`TextVectorization`, `StringLookup`, `IntegerLookup` and `Hashing` compute with strings "
        "and hash tables, which a TPU cannot: the first step fails. Called in `dataset.map`, they "
        "run on the host, and the model gets numbers. For serving, a model with the layer can be "
        "made of the trained one."
    ),
    bad=LAYER
    + """\
    model = tf.keras.Sequential([lookup, tf.keras.layers.Embedding(4, 8)])
"""
    + END,
    good=LAYER
    + """\
    model = tf.keras.Sequential([tf.keras.layers.Embedding(4, 8)])
data = data.map(lambda text, label: (lookup(text), label))
with strategy.scope():
"""
    + END,
)

LAYERS = {
    f"layers.{name}"
    for name in (
        *("TextVectorization", "StringLookup", "IntegerLookup", "Hashing", "HashedCrossing"),
        *(f"experimental.preprocessing.{name}" for name in ("TextVectorization", "StringLookup")),
    )
}
TRAINING = {"fit", "train_on_batch"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    if not tpu_strategies(project) or "set_soft_device_placement" in project.used_names:
        return
    scopes = Scopes(project)
    reported: set[ast.AST] = set()
    for module in project:
        for call in module.calls:
            if not isinstance(call.func, ast.Attribute) or call.func.attr not in TRAINING:
                continue
            if module.names.of(call.func) is not None:
                continue
            for creation in scopes.creations(module, call.func.value, "model"):
                for where, node, layer in _layers(scopes, creation):
                    if creation.is_inside and node not in reported:
                        reported.add(node)
                        message = f"{quoted(where, node)} is a {layer}, which a TPU cannot run"
                        hint = "Call the layer in dataset.map, which runs on the host."
                        yield finding_at(RULE, where, node, message, hint)


def _layers(scopes: Scopes, creation: Creation) -> Iterator[tuple[Module, ast.AST, str]]:
    """The layers for texts in a model, each with its kind."""
    module, node = creation.module, creation.node
    definition = function_of(scopes.project, module, node.func)
    function: Function | None = module.enclosing_function(node)
    if definition is not None:
        module, function = definition
    calls = [call for call in module.calls if module.enclosing_function(call) is function]
    models = [call for call in calls if scopes.constructor(module, call, "model") is not None]
    if definition is not None and len(models) != 1:
        return  # it is not known which of them is trained
    model = node if definition is None else models[0]
    for part in elements_of(model.args[0]) if model.args else ():
        if layer := _layer(scopes, module, part):
            yield module, part, layer
    for call in calls if len(models) == 1 else ():
        layer = _layer(scopes, module, call.func)
        if layer and any(_is_input(scopes, module, value) for value in call.args):
            yield module, call, layer


def _layer(scopes: Scopes, module: Module, node: ast.expr) -> str:
    """The name of the layer for texts that an expression is; "" for others."""
    name = scopes.host.evaluate(module, node).name
    return name.rpartition(".")[2] if keras_name(name) in LAYERS else ""


def _is_input(scopes: Scopes, module: Module, node: ast.expr) -> bool:
    """Whether an expression is an input of a Keras model."""
    values = scopes.host.assigned_values(module, node) if isinstance(node, ast.Name) else [node]
    return bool(values) and all(
        value is not None
        and keras_name(module.names.called(value) or "") in ("Input", "layers.Input")
        for value in values
    )
