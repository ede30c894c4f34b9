"""Scripts whose step the TPU compiler compiles or rejects, without a TPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_cli import forked_tpuctl
from tests.support.subprocesses import run_captured

pytestmark = pytest.mark.soak  # installs gigabytes of packages once

STRATEGY = """
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TPUClusterResolver("local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
"""
KERAS = f"""{STRATEGY}
with strategy.scope():
    model = tf.keras.Sequential([
        tf.keras.Input([28, 28, 1]), tf.keras.layers.Conv2D(64, 3),
        tf.keras.layers.BatchNormalization(), tf.keras.layers.Dropout(0.1),
        tf.keras.layers.Flatten(), tf.keras.layers.Dense(10),
    ])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
images, labels = tf.zeros([512, 28, 28, 1]), tf.zeros([512], tf.int32)
data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(256, drop_remainder=True)
model.fit(data, epochs=2)
print("not reached")
"""
LOOP = f"""{STRATEGY}
with strategy.scope():
    weights = tf.Variable(tf.random.normal([16, 4]))
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)


def step(batch):
    examples, labels = batch
    with tf.GradientTape() as tape:
        logits = examples @ weights
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.reduce_sum(loss) / 64
        tf.print("loss", loss)
    gradient = tape.gradient(loss, weights)
    gradient = tf.py_function(lambda one: one, [gradient], tf.float32)
    gradient.set_shape(weights.shape)
    optimizer.apply_gradients([(gradient, weights)])


@tf.function
def train(iterator):
    for _ in tf.range(4):
        strategy.run(step, args=(next(iterator),))


data = tf.data.Dataset.from_tensors((tf.ones([16]), 1)).repeat().batch(64, drop_remainder=True)
train(iter(strategy.experimental_distribute_dataset(data)))
"""
TRANSFORMERS = f"""
import os
os.environ["TF_USE_LEGACY_KERAS"] = "1"
{STRATEGY}
from transformers import BertConfig, TFBertForSequenceClassification, create_optimizer
with strategy.scope():
    config = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64,
    )
    model = TFBertForSequenceClassification(config)
    optimizer, _ = create_optimizer(1e-4, num_train_steps=100, num_warmup_steps=10)
    model.compile(optimizer=optimizer)
words = {{"input_ids": tf.ones([128, 16], tf.int32)}}
data = tf.data.Dataset.from_tensor_slices((words, tf.zeros([128], tf.int32)))
model.fit(data.batch(64, drop_remainder=True))
"""
NO_STEP = f"""{STRATEGY}
print(tf.reduce_sum(tf.ones([3])).numpy())
"""


def rehearse(folder: Path, text: str, *options: str) -> dict[str, Any]:
    (folder / "train.py").write_text(text, "utf-8")
    command = (forked_tpuctl(), "--json", "rehearse", "--compile")
    done = run_captured([*command, *options, "train.py"], cwd=folder, timeout=1500)
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["exit_code"] == done.returncode, done.stderr
    return answer


def test_keras_3_fit_compiles(tmp_path: Path) -> None:
    answer = rehearse(tmp_path, KERAS, "--type", "v5litepod-8", "--batch", "512")
    assert answer["exit_code"] == 0, answer
    report = answer["data"]
    assert (report["batch_per_core"], report["batch"], report["generation"]) == (64, 512, "v5e")
    assert report["inputs"][0][1][1:] == [28, 28, 1]
    # The weights, Adam's two moments of each, and little else.
    weights = 64 * 9 + 64 + 4 * 64 + 26 * 26 * 64 * 10 + 10
    assert 3 * 4 * (weights - 128) <= report["variable_bytes"] <= 3 * 4 * weights + 4096
    assert report["variable_bytes"] < report["requested"]["peak"] < report["available_bytes"]
    assert 15 << 30 < report["available_bytes"] < 16 << 30
    assert report["dynamic_dimensions"] == 0


def test_out_of_memory_reports_compiler_numbers(tmp_path: Path) -> None:
    # 16 numbers of 4 bytes for each of 2**27 examples: 8.6 GB, plus intermediate results.
    text = LOOP.replace("        tf.print", "        #").replace("    gradient = tf.py_", "    #")
    answer = rehearse(tmp_path, text, "--type", "v2-8", "--batch", str(8 << 27))
    assert answer["exit_code"] == 1
    requested = answer["data"]["requested"]
    assert requested["sizes"] is None
    assert requested["shortfall"].endswith("G of 7.48G")
    assert "RESOURCE_EXHAUSTED" in requested["compiler_message"]


def test_unsupported_operations_are_reported_together_with_lines(tmp_path: Path) -> None:
    answer = rehearse(tmp_path, LOOP, "--type", "v3-8")
    assert answer["exit_code"] == 1 and answer["data"], answer
    refusal = answer["data"]["refusal"]
    assert refusal["origin"] == "compiler"
    lines = {
        (obstacle["operation"], obstacle["where"]["text"].split("(")[0])
        for obstacle in refusal["obstacles"]
    }
    assert lines == {
        ("PrintV2", "tf.print"),
        ("StringFormat", "tf.print"),
        ("EagerPyFunc", "gradient = tf.py_function"),
    }


def test_soft_placement_runs_on_the_host_what_the_compiler_lacks(tmp_path: Path) -> None:
    text = LOOP.replace(
        "@tf.function\n", "tf.config.set_soft_device_placement(True)\n\n\n@tf.function\n"
    )
    refusal = rehearse(tmp_path, text, "--type", "v3-8")["data"]["refusal"]
    assert refusal["origin"] == "tpuctl"
    assert "soft placement runs it on the host" in refusal["message"]
    # Prints are left out of the program, as TensorFlow does it.
    assert [obstacle["operation"] for obstacle in refusal["obstacles"]] == ["EagerPyFunc"]


def test_transformers_fit_compiles(tmp_path: Path) -> None:
    answer = rehearse(tmp_path, TRANSFORMERS, "--type", "v3-8", "--batch", "64")
    assert answer["exit_code"] == 0, answer
    # Gradients of embeddings use `unique`, whose output size is not known in advance.
    assert answer["data"]["dynamic_dimensions"] > 0


def test_script_without_training_step_is_rejected(tmp_path: Path) -> None:
    answer = rehearse(tmp_path, NO_STEP, "--type", "v3-8")
    assert answer["exit_code"] == 65
    assert answer["diagnostics"][0]["summary"] == "No training step was found"


def test_tensorflow_of_the_requirements_is_replaced_by_that_of_the_compiler(tmp_path: Path) -> None:
    """Images of Compute Engine have none, so that jobs require tensorflow-tpu."""
    text = "stack: bert\nproject: {id: local-project}\ntpu: {type: v6e-8, api: compute}\n"
    (tmp_path / "tpuctl.yaml").write_text(text, "utf-8")
    (tmp_path / "requirements.txt").write_text("tensorflow-tpu==2.19.1\n", "utf-8")
    answer = rehearse(tmp_path, KERAS, "--batch", "512")
    assert answer["exit_code"] == 0, answer
    report = answer["data"]
    assert (report["type"], report["tensorflow"], report["batch_per_core"]) == (
        *("v6e-8", "2.18.0"),
        64,
    )
    assert 31 << 30 < report["available_bytes"] <= 32 << 30
