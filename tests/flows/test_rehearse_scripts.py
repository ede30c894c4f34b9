"""Rehearsals of scripts of many kinds find exactly their problems."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_cli import forked_tpuctl
from tests.support.subprocesses import run_captured
from tpuctl.api import Tpuctl

pytestmark = [pytest.mark.tensorflow, pytest.mark.soak, pytest.mark.timeout(900)]

PROLOGUE = """
import os

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ["TPU_NAME"])
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
batch = 8 * strategy.num_replicas_in_sync
x = tf.random.stateless_normal((512, 32), (1, 2))
"""
KERAS = (
    PROLOGUE
    + """
class Layer(tf.keras.layers.Layer):
    def call(self, x):
        {call}


with strategy.scope():
    model = tf.keras.Sequential(
        [tf.keras.layers.Input((32,)), tf.keras.layers.Dense(10), Layer()]
    )
    model.compile({optimizer}, "mse")
pairs = tf.data.Dataset.from_tensor_slices((x, x[:, :10])).repeat()
model.fit(pairs.batch(batch, drop_remainder=True), steps_per_epoch=100, epochs=3, verbose=2)
"""
)
VARYING_SHAPES = (
    PROLOGUE
    + """
with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Embedding(100, 16),
            tf.keras.layers.GlobalAveragePooling1D(),
            tf.keras.layers.Dense(2),
        ]
    )
    model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))


def rows():
    for length in [17, 23, 41, 55, 60, 61, 90, 120] * 10:
        yield tf.ones((batch, length), tf.int32), tf.zeros((batch,), tf.int32)


rows_of = tf.TensorSpec((batch, None), tf.int32), tf.TensorSpec((batch,), tf.int32)
model.fit(tf.data.Dataset.from_generator(rows, output_signature=rows_of), epochs=3, verbose=2)
"""
)
CUSTOM_LOOP = (
    PROLOGUE
    + """
with strategy.scope():
    weights = tf.Variable(tf.zeros((32, 10)))
    optimizer = tf.keras.optimizers.SGD(0.1)
pairs = tf.data.Dataset.from_tensor_slices((x, tf.argmax(x[:, :10], axis=1))).repeat()
pairs = pairs.batch(batch, drop_remainder=True)
batches = iter(strategy.experimental_distribute_dataset(pairs))
checkpoint = tf.train.Checkpoint(weights=weights, step=tf.Variable(0, dtype=tf.int64))
manager = tf.train.CheckpointManager(checkpoint, os.environ["TPUCTL_OUTPUT"] + "/saved", 2)
checkpoint.restore(manager.latest_checkpoint)


@tf.function
def train(batches):
    def step(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ weights))
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
        return loss

    return strategy.reduce("MEAN", strategy.run(step, args=(next(batches),)), axis=None)


while int(checkpoint.step) < 100_000:
    train(batches)
    checkpoint.step.assign_add(1)
    if int(checkpoint.step) % 4 == 0:
        manager.save()
"""
)
MISSING_OBJECT = (
    PROLOGUE
    + """
for record in tf.data.TFRecordDataset("gs://missing-records/train/one.tfrecord"):
    print(record)
"""
)
INDIVISIBLE = PROLOGUE.replace("8 * strategy.num_replicas_in_sync", "8") + (
    "if strategy.num_replicas_in_sync > 1:\n    raise ValueError('12 is not divisible by 8')\n"
    "model = tf.keras.Sequential([tf.keras.layers.Input((32,)), tf.keras.layers.Dense(10)])\n"
    "model.compile('sgd', 'mse')\nmodel.fit(x, x[:, :10], batch_size=8)\n"
)
RUNTIME = "tpu-vm-tf-2.18.0-pjrt-v5p-and-below"
Problems = set[tuple[str, str]]


@pytest.fixture
def rehearse(make_stack: Callable[..., Tpuctl]) -> Callable[[str], Any]:
    folder: Path = make_stack(runtime=RUNTIME).stack_file.parent

    def run(text: str) -> Any:
        (folder / "train.py").write_text(text, "utf-8")
        command = [forked_tpuctl(), "--cloud", "local", "--json", "rehearse"]
        done = run_captured([*command, "--no-check", "train.py"], cwd=folder, env=os.environ)
        data = json.loads(done.stdout)["data"]
        assert data is not None, done.stdout
        errors = [finding for finding in data["findings"] if finding["severity"] == "error"]
        assert done.returncode == bool(errors)
        return data

    return run


def problems(data: Any) -> Problems:
    topics = [(finding["severity"], finding["topic"]) for finding in data["findings"]]
    return {topic for topic in topics if topic[0] in ("error", "cost", "risk")}


NO_CHECKPOINT = ("risk", "checkpoint")


def keras(call: str = "return x", optimizer: str = '"adam"') -> str:
    return KERAS.replace("{call}", call).replace("{optimizer}", optimizer)


PY_FUNCTION = "return tf.ensure_shape(tf.py_function(lambda z: z, [x], tf.float32), x.shape)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            keras(optimizer="tf.keras.optimizers.SGD(1e30)"),
            {("error", "loss"), NO_CHECKPOINT},
            id="infinite-loss",
        ),
        pytest.param(CUSTOM_LOOP, set(), id="custom-loop"),
        pytest.param(MISSING_OBJECT, {("error", "data")}, id="absent-object"),
        pytest.param(INDIVISIBLE, {("error", "replicas"), NO_CHECKPOINT}, id="replicas"),
        pytest.param("import nothere\n", {("error", "script")}, id="import"),
    ],
)
def test_rehearsal_finds_expected_problems_only(
    rehearse: Callable[[str], Any], text: str, expected: Problems
) -> None:
    assert problems(rehearse(text)) == expected


def test_compile_error_has_line_of_unsupported_operation(rehearse: Callable[[str], Any]) -> None:
    text = keras(PY_FUNCTION)
    data = rehearse(text)
    assert problems(data) == {("error", "compiling")}
    [error] = [finding for finding in data["findings"] if finding["severity"] == "error"]
    assert text.splitlines()[error["line"] - 1].strip() == PY_FUNCTION


def test_each_input_length_is_compiled(rehearse: Callable[[str], Any]) -> None:
    data = rehearse(VARYING_SHAPES)
    assert problems(data) == {("cost", "shapes"), NO_CHECKPOINT}
    [function] = data["measured"]["functions"]
    assert function["compilations"] == 8
    [cost] = [finding for finding in data["findings"] if finding["severity"] == "cost"]
    # 17 and 23 become 32; 41, 55, 60, 61 become 64; 90 becomes 96; 120 becomes 128.
    # With multiples of 64: 64 and 128.
    assert "multiples of 64: 2 instead of 8" in cost["hint"]
