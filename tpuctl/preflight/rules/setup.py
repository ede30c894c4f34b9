"""Strategies and what is made within them (TPU401 to TPU404)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.constants import Constants
from tpuctl.preflight.analysis.functions import function_of, is_legacy_keras
from tpuctl.preflight.analysis.locations import edit_of, found_at, is_excused, keyword_edit
from tpuctl.preflight.analysis.names import keras_name
from tpuctl.preflight.analysis.source import Module, Project
from tpuctl.preflight.analysis.strategy_scopes import Kind, Made, Scopes, tpu_strategies
from tpuctl.preflight.analysis.syntax import argument, dotted, own_nodes, several
from tpuctl.preflight.findings import Edit, Finding, Rule, Severity, Target
from tpuctl.preflight.rules import shares

__all__ = ["RULES", "find"]

CONNECT = """import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
"""
RULES = (
    Rule(
        "TPU401",
        "jit-compile-left-in",
        Severity.risk,
        "`jit_compile=True` is for GPUs and CPUs; on a TPU all is compiled anyway.",
        "What a TPU runs is always compiled. The flag asks for a second compilation of its own "
        "within the first, or on the machine's CPU, and has made programs fail that run "
        "without it.",
        """import keras

model = keras.Sequential([keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse", jit_compile=True)
""",
        """import keras

model = keras.Sequential([keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse", jit_compile=False)
""",
    ),
    Rule(
        "TPU402",
        "made-outside-scope",
        Severity.error,
        "Models, optimizers, metrics and variables of the TPU belong in `strategy.scope()`.",
        "Variables stay where they were made. What is made outside of the scope has its variables "
        "on the host: replicas cannot reach them, and a model that is made, compiled and "
        "fitted outside trains on the host's CPU, without a word.",
        CONNECT
        + """
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
with strategy.scope():
    model.compile(optimizer="adam", loss="mse")
""",
        CONNECT
        + """
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
""",
    ),
    Rule(
        "TPU403",
        "tpu-not-initialised",
        Severity.error,
        "A TPU is initialised before a strategy is made for it, and a node is connected before.",
        "`TPUStrategy` does neither: without `tf.tpu.experimental.initialize_tpu_system` the first "
        "step finds no TPU system. The devices of a TPU node, another machine, are there only "
        "after `tf.config.experimental_connect_to_cluster`.",
        """import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
strategy = tf.distribute.TPUStrategy(resolver)
""",
        CONNECT,
    ),
    Rule(
        "TPU404",
        "batch-not-divisible",
        Severity.error,
        "The global batch must be divisible by the number of replicas.",
        "Each replica takes an equal share of the batch. Where there is none, `fit` of Keras 3, of "
        "TensorFlow 2.1, and `get_per_replica_batch_size` raise; other loops give replicas shares "
        "of different shapes, which cost memory and time. Choose the share of a replica, and "
        "multiply.",
        CONNECT
        + """
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
model.fit(tf.ones([1000, 4]), tf.ones([1000, 1]), batch_size=100)
""",
        CONNECT
        + """
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
batch_size = 16 * strategy.num_replicas_in_sync
model.fit(tf.ones([1024, 4]), tf.ones([1024, 1]), batch_size=batch_size)
""",
        Target(replicas=8),
    ),
)

INITIALISE = ("initialize_tpu_system", "TPUClusterResolver.connect")
CONNECTS = ("connect_to_cluster", "experimental_connect_to_host", "TPUClusterResolver.connect")
FUNCTIONS = ("tensorflow.function", "functools.partial")
NOT_TPU = ("gpu", "cpu", "tpu", "strategy", "replica", "accelerator", "xla")


def find(project: Project, target: Target) -> Iterator[Finding]:
    """Yield what breaks these rules."""
    yield from _compiled_twice(project)
    strategies = tpu_strategies(project)
    yield from _uninitialised(project, target, strategies)
    if strategies:
        yield from _Outside(project, target).find()
        yield from shares.find(project, target)


# TPU401 ---------------------------------------------------------------------------------------


def _compiled_twice(project: Project) -> Iterator[Finding]:
    for module in project:
        for call in module.calls:
            for one in call.keywords:
                is_on = isinstance(one.value, ast.Constant) and one.value.value is True
                if one.arg not in ("jit_compile", "experimental_compile") or not is_on:
                    continue
                if _takes_flag(module, call) and not is_excused(module, call, NOT_TPU):
                    yield found_at(
                        "TPU401",
                        Severity.risk,
                        module,
                        one,
                        f"`{one.arg}=True` is left in: on a TPU all is compiled anyway",
                        _instead(module, call),
                        _without_flag(module, call, one),
                    )


def _takes_flag(module: Module, call: ast.Call) -> bool:
    name = module.names.of(call.func)
    if name == "functools.partial" and call.args:
        name = module.names.of(call.args[0])
    is_compile = isinstance(call.func, ast.Attribute) and call.func.attr == "compile"
    optimizer = (keras_name(name) or "").startswith("optimizers.")
    return name == "tensorflow.function" or (is_compile and name is None) or optimizer


def _instead(module: Module, call: ast.Call) -> str:
    if module.names.of(call.func) in FUNCTIONS:
        return "Take it out for the TPU."
    return "Write jit_compile=False for the TPU."


def _without_flag(module: Module, call: ast.Call, keyword: ast.keyword) -> list[Edit]:
    """Of `tf.function` it is taken out; for Keras it is off, since 3 chooses by itself else."""
    if keyword.arg == "jit_compile" and module.names.of(call.func) not in FUNCTIONS:
        return [edit_of(module, keyword.value, "False")]
    edit = keyword_edit(module, call, keyword)
    return [edit] if edit is not None else []


# TPU403 ---------------------------------------------------------------------------------------


def _uninitialised(
    project: Project, target: Target, strategies: list[tuple[Module, ast.Call]]
) -> Iterator[Finding]:
    hint = "Before the strategy is made:\n    tf.tpu.experimental.initialize_tpu_system(resolver)"
    if _asks_for_devices(project):
        return
    starts = _calls(project, INITIALISE)
    for module, call in strategies:
        if not starts and _is_given(project, module, call):
            continue
        later = [one for where, one in starts if where is module and _is_after(module, one, call)]
        if not starts or len(later) == len(starts):
            text = f"`{dotted(call.func)}` is made before the TPU is initialised"
            if not starts:
                text = f"`{dotted(call.func)}` is made of a TPU that nothing initialises"
            yield found_at("TPU403", Severity.error, module, call, text, hint)
    if target.kind != "node" or _calls(project, CONNECTS) or (strategies and not starts):
        return
    for module, call in _calls(project, ("TPUClusterResolver",)):
        text = "nothing connects to the TPU node that is resolved"
        hint = "Then:\n    tf.config.experimental_connect_to_cluster(resolver)"
        yield found_at("TPU403", Severity.error, module, call, text, hint)


def _is_given(project: Project, module: Module, call: ast.Call) -> bool:
    """Whether code that is not seen hands over what the strategy is made for."""
    node = argument(call, 0, "tpu_cluster_resolver")
    if node is None or isinstance(node, ast.Constant):
        return False
    found = [node] if isinstance(node, ast.Call) else Constants.of(project).given(module, node)
    for one in found:
        name = module.names.called(one) if one is not None else None
        is_own = isinstance(one, ast.Call) and function_of(project, module, one.func) is not None
        if is_own or (name or "").startswith("tensorflow."):
            return False
    return True


def _asks_for_devices(project: Project) -> bool:
    """Whether the script looks if TPUs are there already: it expects another to make them so."""
    return any(
        any(isinstance(part, ast.Constant) and part.value == "TPU" for part in call.args)
        for _, call in _calls(project, ("list_logical_devices",))
    )


def _calls(project: Project, endings: tuple[str, ...]) -> list[tuple[Module, ast.Call]]:
    """The calls of what has such a name, whatever it was imported as."""
    return [
        (module, call)
        for module in project
        for call in module.calls
        if (module.names.of(call.func) or dotted(call.func) or "").endswith(endings)
    ]


def _is_after(module: Module, node: ast.Call, other: ast.Call) -> bool:
    """Whether it stands behind another in the same function."""
    is_same = module.function_around(node) is module.function_around(other)
    return (
        is_same
        and other not in module.around(node)
        and (node.lineno, node.col_offset) > (other.lineno, other.col_offset)
    )


# TPU402 ---------------------------------------------------------------------------------------


class _Outside:
    """What is made outside of a scope, and needed within it."""

    def __init__(self, project: Project, target: Target) -> None:
        self.project, self.target = project, target
        self.scopes = Scopes(project)
        self.told: set[ast.AST] = set()

    def find(self) -> Iterator[Finding]:
        if self.scopes.is_entered_otherwise():
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
                    yield from self._needed(module, node)

    def _compiled(self, module: Module, call: ast.Call) -> Iterator[Finding]:
        assert isinstance(call.func, ast.Attribute)
        model = self.scopes.made(module, call.func.value, "model")
        if _are_outside(model):
            yield from self._tell(model, "the model")
            return
        if not model or not all(one.inside for one in model):
            return
        optimizer = argument(call, 0, "optimizer")
        outside = self.scopes.made(module, optimizer, "optimizer")
        is_outside = self.scopes.is_inside(module, call) is False
        if is_outside and _is_made_here(optimizer, call) and not self._is_legacy(model[0].name):
            if call not in self.told:
                self.told.add(call)
                text = "the model is compiled outside of the strategy's scope that it is made in"
                hint = "Compile it within `with strategy.scope():`."
                yield found_at("TPU402", Severity.error, module, call, text, hint)
            return
        if _are_outside(outside) and self._has_variables(outside[0].name):
            yield from self._tell(outside, "the optimizer")
        for name in ("metrics", "weighted_metrics"):
            for one in several(argument(call, 2 if name == "metrics" else -1, name)):
                found = self.scopes.made(module, one, "metric")
                if _are_outside(found):
                    yield from self._tell(found, "the metric")

    def _fitted(self, module: Module, node: ast.expr) -> Iterator[Finding]:
        found = self.scopes.made(module, node, "model")
        if _are_outside(found):
            yield from self._tell(found, "the model")

    def _needed(self, module: Module, node: ast.expr) -> Iterator[Finding]:
        """What a function that replicas run takes from around it."""
        kinds: dict[Kind, str] = {
            "model": "the model",
            "optimizer": "the optimizer",
            "metric": "the metric",
            "variable": "the variable",
        }
        for kind, what in kinds.items():
            found = self.scopes.made(module, node, kind)
            if not _are_outside(found):
                continue
            if kind != "optimizer" or self._has_variables(found[0].name):
                yield from self._tell(found, what)

    def _tell(self, made: list[Made], what: str) -> Iterator[Finding]:
        for one in made:
            if one.node not in self.told:
                self.told.add(one.node)
                text = f"{what} of the TPU is made outside of the strategy's scope"
                hint = "Make it within `with strategy.scope():`."
                yield found_at("TPU402", Severity.error, one.module, one.node, text, hint)

    def _is_legacy(self, name: str) -> bool:
        return is_legacy_keras(self.project, name, self.target)

    def _has_variables(self, name: str) -> bool:
        """Whether an optimizer of that name is bound to where it was made: Keras 2 binds none."""
        return not self._is_legacy(name)


def _are_outside(made: list[Made]) -> bool:
    return bool(made) and all(one.inside is False for one in made)


def _is_made_here(optimizer: ast.expr | None, call: ast.Call) -> bool:
    """Whether `compile` itself is where the optimizer is made, or named by a text."""
    if optimizer is None or isinstance(optimizer, ast.Constant):
        return not any(one.arg is None for one in call.keywords)
    return isinstance(optimizer, ast.Call)
