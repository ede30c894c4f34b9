"""Shapes that differ between batches, and numbers that are retraced."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rule_checker import RuleChecker
from tpuctl.preflight.findings import Target

CODES = ("TPU2",)
NEW = Target("vm", "2.18.0", 8)
HEAD = """import math
import numpy as np
import tensorflow as tf
from transformers import DataCollatorForLanguageModeling, DataCollatorWithPadding

data = tf.data.TFRecordDataset(paths)
x = np.zeros((64, 8))
"""


def check(folder: Path, source: str) -> None:
    RuleChecker(folder, *CODES).assert_marked(HEAD + source, NEW)


@pytest.mark.parametrize(
    "line",
    [
        "train = data.shuffle(9).batch(8)  # TPU201 cost",
        "train = data.batch(8, drop_remainder=True)",
        "train = data.batch(8, True)",
        "train = data.repeat().shuffle(9).batch(8)",
        "train = data.repeat(3).batch(8)  # TPU201 cost",
        "train = tf.data.Dataset.from_tensor_slices(x).shuffle(64).batch(8)",
        "train = tf.data.Dataset.from_tensor_slices(x).batch(24)  # TPU201 cost",
        "train = tf.data.Dataset.range(100).map(abs).batch(10)",
        "train = tf.data.Dataset.range(100).filter(bool).batch(10)  # TPU201 cost",
        "validation_data = data.batch(8)",
        "model.fit(train, validation_data=data.batch(8))",
        "model.evaluate(data.batch(8))",
        "jobs = scheduler.batch(8)",
        "train = data.padded_batch(8, drop_remainder=True)  # TPU203 cost",
        "train = data.padded_batch(8, padded_shapes=([None], []))  # TPU203 cost",
        "train = data.padded_batch(8, padded_shapes=([128], []))",
        "train = data.bucket_by_sequence_length(len, [8], [4, 4])  # TPU203 cost",
        "collate = DataCollatorWithPadding(tokenizer)  # TPU202 cost",
        "collate = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=64)",
        "collate = DataCollatorWithPadding(tokenizer, padding='max_length', max_length=64)",
        "collate = DataCollatorForLanguageModeling(tokenizer, return_tensors='pt')",
        "whole = tokenizer(texts, padding=True, return_tensors='tf')",
        "parts = [tokenizer(one, padding=True) for one in texts]  # TPU202 cost",
        "parts = [tokenizer(one, padding='max_length') for one in texts]",
    ],
)
def test_batch_shapes_of_single_lines(line: str, tmp_path: Path) -> None:
    check(tmp_path, line + "\n")


def test_no_findings_without_tensorflow(tmp_path: Path) -> None:
    source = "import jax\n\ndata = rows.shuffle(3).map(abs).batch(8)\n"
    RuleChecker(tmp_path, *CODES).assert_marked(source, NEW)


@pytest.mark.parametrize(
    "lines",
    [
        "data = data.batch(1000).map(parse).unbatch().batch(64, drop_remainder=True)",
        "data = data.batch(1000)\n    data = data.map(parse).unbatch()",
        "def several(data):\n        return data.batch(9)\n\n    data = read(several).unbatch()",
        "for row in data.unbatch().batch(1000):\n        print(row)",
        "for row in data.unbatch().batch(9).as_numpy_iterator():\n        model(row)",
        "rows = data.unbatch().batch(9)\n    for row in rows:\n        np.save('rows', row)",
    ],
)
def test_batches_used_on_host_are_not_reported(lines: str, tmp_path: Path) -> None:
    head = (
        "import numpy as np\nimport tensorflow as tf\n\n\ndef train(paths, model, parse, read):\n"
    )
    source = f"{head}    data = tf.data.TFRecordDataset(paths)\n    {lines}\n    model.fit(data)\n"
    RuleChecker(tmp_path, *CODES).assert_marked(source, Target("vm", "2.18.0", 8))


def test_uneven_batches_of_step_are_a_cost(tmp_path: Path) -> None:
    source = """import tensorflow as tf


def train(paths, model):
    data = tf.data.TFRecordDataset(paths).unbatch().batch(64)  # TPU201 cost
    for row in data:
        model(row)
    rows = tf.data.TFRecordDataset(paths)
    rows = rows.batch(8).unbatch().batch(64)  # TPU201 cost
    model.fit(rows)
"""
    RuleChecker(tmp_path, *CODES).assert_marked(source, Target("vm", "2.18.0", 8))


PROGRAMS = {
    "datasets in functions": """
def prepare(records, training):
    if training:
        records = records.shuffle(9)
    return records.batch(8).prefetch(2)  # TPU201 cost

def eval_data(records):
    return records.map(abs).batch(8)

def endless(records):
    records = records.repeat()
    return records.shuffle(9).batch(8)

train = prepare(data, True)
""",
    "tokenizer in a mapped function": """
def encode(rows):
    return tokenizer(rows["text"], padding=True)  # TPU202 cost

def all_at_once(texts):
    return tokenizer(texts, padding=True)

encoded = rows.map(encode, batched=True)
whole = all_at_once(texts)
""",
    "collator for a fixed length": """
collate = DataCollatorForLanguageModeling(tokenizer)

def encode(rows):
    return tokenizer(rows["text"], padding="max_length", max_length=128)
""",
    "numbers that change": """
@tf.function
def step(x, rate, flag=False):
    return x * rate

@tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
def fixed(rate):
    return rate

def plain(x, rate):
    return x * rate

def train(x, data):
    seen = 0
    for epoch in range(9):
        rate = 0.1 * math.exp(-epoch)
        step(x, rate)  # TPU204 cost
        step(x, tf.constant(rate))
        step(x, 0.1)
        step(x, 0.1, flag=epoch > 3)
        fixed(rate)
        plain(x, rate)
        for number, batch in enumerate(data):
            seen += 1
            step(batch, seen)  # TPU204 cost
            step(batch, rate=number)  # TPU204 cost
            step(batch, tf.cast(number, tf.float32))
            step(batch, batch)
            step(batch, batch.numpy())
    step(x, 3)
""",
}


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS)
def test_findings_in_programs_match_markers(source: str, tmp_path: Path) -> None:
    check(tmp_path, source)
