"""Which functions of a project XLA compiles, and which of those autograph converts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpuctl.preflight.analysis.program.source import load
from tpuctl.preflight.analysis.tracing.traced import Traced, find_traced
from tpuctl.preflight.findings import Target

NEW = Target("vm", "2.18.0", 8)
OLD = Target("vm", "2.15.1", 8)
HEAD = "import tensorflow as tf\nfrom tensorflow import keras\n"
# Observed in both Keras versions by training with a conditional on a tensor.
LAYER = "class Own(keras.layers.Layer):\n    def call(self, x):\n        return x\n"
MODEL = "class Own(keras.Model):\n    def train_step(self, data):\n        return data\n"
LOSS = "class Own(keras.losses.Loss):\n    def call(self, y_true, y_pred):\n        return y_pred\n"
METRIC = "class Own(keras.metrics.Metric):\n    def update_state(self, y, p):\n        pass\n"
LOSS_FUNCTION = "def own(y, p):\n    return p\nmodel.compile('sgd', own)\n"
METRIC_FUNCTION = "def own(y, p):\n    return p\nmodel.compile('sgd', 'mse', metrics=[own])\n"
ACTIVATION = "def own(x):\n    return x\nlayer = keras.layers.Dense(1, activation=own)\n"
LAMBDA = "layer = keras.layers.Lambda(lambda x: x)\n"
SCHEDULE = (
    "class Own(keras.optimizers.schedules.LearningRateSchedule):\n"
    "    def __call__(self, step):\n        return 0.1\n"
)
REGULARIZER = (
    "class Own(keras.regularizers.Regularizer):\n    def __call__(self, x):\n        return 0.0\n"
)
DECORATED = (
    "class Own(keras.Model):\n    @tf.function\n    def train_step(self, data):\n"
    "        return data\n"
)


def traced_functions(folder: Path, source: str, target: Target, **files: str) -> dict[str, Traced]:
    script = folder / "train.py"
    script.write_text(source, "utf-8")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, "utf-8")
    traced = find_traced(load(script), target).values()
    return {getattr(function.node, "name", "lambda"): function for function in traced}


@pytest.mark.parametrize(
    ("source", "converted_by_old"),
    [
        pytest.param(LAYER, True, id="layer"),
        pytest.param(LOSS, True, id="loss"),
        pytest.param(METRIC, True, id="metric"),
        pytest.param(LOSS_FUNCTION, True, id="loss function"),
        pytest.param(METRIC_FUNCTION, True, id="metric function"),
        pytest.param(MODEL, False, id="train_step"),
        pytest.param(ACTIVATION, False, id="activation"),
        pytest.param(LAMBDA, False, id="lambda layer"),
        pytest.param(SCHEDULE, False, id="schedule"),
        pytest.param(REGULARIZER, False, id="regularizer"),
    ],
)
def test_autograph_converts_only_methods_of_keras_2(
    source: str, converted_by_old: bool, tmp_path: Path
) -> None:
    (new,) = traced_functions(tmp_path, HEAD + source, NEW).values()
    (old,) = traced_functions(tmp_path, HEAD + source, OLD).values()
    assert (new.autograph, old.autograph) == (False, converted_by_old)
    assert "Keras 3" in new.no_autograph
    legacy = "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\n" + HEAD + source
    (function,) = traced_functions(tmp_path, legacy, NEW).values()
    assert function.autograph is converted_by_old


@pytest.mark.parametrize("target", [NEW, OLD])
def test_tf_function_step_is_converted(target: Target, tmp_path: Path) -> None:
    (function,) = traced_functions(tmp_path, HEAD + DECORATED, target).values()
    assert function.autograph


PLAIN = """
def helper(x):
    return x

def untouched(x):
    return helper(x)

@tf.function(autograph=False)
def off(x):
    return helper(x)

@tf.function
def on(x):
    return other(x)

def other(x):
    return off(x)

@tf.autograph.experimental.do_not_convert
def kept(x):
    return x

@tf.function
def calls_kept(x):
    return kept(x)
"""


def test_callee_is_converted_with_caller(tmp_path: Path) -> None:
    functions = traced_functions(tmp_path, HEAD + PLAIN, NEW)
    assert {name: function.autograph for name, function in functions.items()} == {
        "helper": False,
        "off": False,
        "on": True,
        "other": True,
        "kept": False,
        "calls_kept": True,
    }
    assert functions["other"].because == "`on` calls `other`, and `on` is a tf.function"


REPLICATED = """
import steps

strategy = tf.distribute.TPUStrategy(resolver)

def replica_step(x):
    return steps.loss_of(x)

@tf.function
def step(iterator):
    strategy.run(replica_step, args=(next(iterator),))

def decode(record):
    return tf.io.parse_single_example(record, {})

data = tf.data.TFRecordDataset(paths).map(decode)
data = data.filter(lambda x: x > 0)
"""


def test_outer_loop_and_pipeline_run_on_host(tmp_path: Path) -> None:
    files = {"steps": "import tensorflow as tf\n\ndef loss_of(x):\n    return x\n"}
    functions = traced_functions(tmp_path, HEAD + REPLICATED, NEW, **files)
    assert set(functions) == {"replica_step", "loss_of"}
    assert functions["replica_step"].because == "`replica_step` is passed to strategy.run"


def test_code_under_tape_is_differentiated(tmp_path: Path) -> None:
    source = """
def inside(x):
    return x

def outside(x):
    return x

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        y = inside(x)
    return outside(y)
"""
    functions = traced_functions(tmp_path, HEAD + source, NEW)
    assert functions["inside"].is_differentiated
    assert not functions["outside"].is_differentiated


def test_aliases_are_resolved(tmp_path: Path) -> None:
    source = """
import functools

def one(x, size):
    return x

def two(x):
    return x

def itself(x):
    return x

itself = itself
step = tf.function(functools.partial(one, size=3))
again = tf.function(two)
never = tf.function(never)
"""
    assert set(traced_functions(tmp_path, HEAD + source, NEW)) == {"one", "two"}
