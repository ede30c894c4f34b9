"""Which functions of a project XLA compiles, and which of those autograph converts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpuctl.preflight.analysis.source import load
from tpuctl.preflight.analysis.traced import Traced, find_traced
from tpuctl.preflight.findings import Target

NEW = Target("vm", "2.18.0", 8)
OLD = Target("vm", "2.15.1", 8)
HEAD = "import tensorflow as tf\nfrom tensorflow import keras\n"
# What both Keras do with it was seen by training with a conditional on a tensor in it.
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


def found(folder: Path, source: str, target: Target, **files: str) -> dict[str, Traced]:
    script = folder / "train.py"
    script.write_text(source, "utf-8")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, "utf-8")
    traced = find_traced(load(script), target).values()
    return {getattr(one.node, "name", "lambda"): one for one in traced}


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
def test_keras_2_converts_some_and_keras_3_nothing(
    source: str, converted_by_old: bool, tmp_path: Path
) -> None:
    (new,) = found(tmp_path, HEAD + source, NEW).values()
    (old,) = found(tmp_path, HEAD + source, OLD).values()
    assert (new.autograph, old.autograph) == (False, converted_by_old)
    assert "Keras 3" in new.no_autograph
    legacy = "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\n" + HEAD + source
    (kept,) = found(tmp_path, legacy, NEW).values()
    assert kept.autograph is converted_by_old


@pytest.mark.parametrize("target", [NEW, OLD])
def test_a_step_that_is_a_function_of_its_own_is_converted(target: Target, tmp_path: Path) -> None:
    (one,) = found(tmp_path, HEAD + DECORATED, target).values()
    assert one.autograph


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


def test_what_is_called_is_converted_with_its_caller(tmp_path: Path) -> None:
    told = found(tmp_path, HEAD + PLAIN, NEW)
    assert {name: one.autograph for name, one in told.items()} == {
        "helper": False,
        "off": False,
        "on": True,
        "other": True,
        "kept": False,
        "calls_kept": True,
    }
    assert told["other"].because == "`on` calls `other`, and `on` is a tf.function"


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


def test_the_loop_around_and_the_pipeline_run_on_the_host(tmp_path: Path) -> None:
    files = {"steps": "import tensorflow as tf\n\ndef loss_of(x):\n    return x\n"}
    told = found(tmp_path, HEAD + REPLICATED, NEW, **files)
    assert set(told) == {"replica_step", "loss_of"}
    assert told["replica_step"].because == "`replica_step` is given to strategy.run"


def test_gradients_are_taken_of_what_stands_under_a_tape(tmp_path: Path) -> None:
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
    told = found(tmp_path, HEAD + source, NEW)
    assert told["inside"].is_differentiated
    assert not told["outside"].is_differentiated


def test_names_are_seen_through(tmp_path: Path) -> None:
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
    assert set(found(tmp_path, HEAD + source, NEW)) == {"one", "two"}
