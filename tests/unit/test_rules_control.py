"""Conditionals and loops on tensors, with and without autograph."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rule_checker import RuleChecker
from tpuctl.preflight.findings import Target

CODES = ("TPU001", "TPU002", "TPU003")
NEW = Target("vm", "2.18.0", 8)
OLD = Target("vm", "2.15.1", 8)
HEAD = "import tensorflow as tf\nfrom tensorflow import keras\n\n"
GATE = """
class Gate(keras.layers.Layer):
    def call(self, x, training=False, mask=None):
        if training and self.built:
            x = x * 2
        if mask is not None:
            x = x * mask
        if x.shape[0] > 3 or x.dtype == tf.float32:
            x = x + 1
        for name in ("a", "b"):
            x = x + len(name)
        if tf.reduce_sum(x) > 0:{new}
            return x
        return -x


model = keras.Sequential([Gate()])
model.fit(tf.ones([8, 8]))
"""


def check(folder: Path, source: str, target: Target = NEW) -> None:
    RuleChecker(folder, *CODES).assert_marked(HEAD + source, target)


def test_keras_3_layer_is_not_converted_and_that_of_keras_2_is(tmp_path: Path) -> None:
    check(tmp_path, GATE.format(new="  # TPU001 error"), NEW)
    check(tmp_path, GATE.format(new=""), OLD)


@pytest.mark.parametrize(
    "lines",
    [
        "assert tf.reduce_all(x > 0)  # TPU001 error",
        "x = [row for row in tf.abs(x)]  # TPU002 error",
        "x = [one for one in (x, x) if tf.reduce_sum(x) > 0]  # TPU001 error",
        "x = [one for one in (x, x) if one is not None]",
        "x = x if tf.reduce_sum(x) > 0 and tf.reduce_sum(x) < 9 else -x",
        "x = tf.cast(not tf.reduce_any(x > 0), tf.int32)",
        "assert x.shape[0] == 4, x.shape",
    ],
)
def test_autograph_converts_conditionals_and_loops(lines: str, tmp_path: Path) -> None:
    check(tmp_path, f"@tf.function\ndef step(x: tf.Tensor):\n    {lines}\n    return x\n")


PROGRAMS = {
    "value set in one branch": """
@tf.function
def step(x: tf.Tensor):
    if tf.reduce_sum(x) > 0:  # TPU001 error
        scaled = x * 2
    if tf.reduce_sum(x) > 1:
        local = x * 2
        x = local
    if tf.reduce_sum(x) > 2:
        both = x
    else:
        both = -x
    return scaled + both

@tf.function
def half(x: tf.Tensor):
    if tf.reduce_sum(x) > 0:  # TPU001 error
        return x

@tf.function
def whole(x: tf.Tensor):
    if tf.reduce_sum(x) > 0:
        return x
    return -x
""",
    "tensor that grows in a loop": """
@tf.function
def step(x: tf.Tensor):
    words = x[:1]
    for i in tf.range(4):
        words = tf.concat([words, x[:1]], 0)  # TPU002 error
    for i in range(4):
        words = tf.concat([words, x[:1]], 0)
    for i in tf.range(4):
        tf.autograph.experimental.set_loop_options(shape_invariants=[(words, [None, 8])])
        words = tf.concat([words, x[:1]], 0)
    return words
""",
    "plain Python": """
def train(data):
    for x in data:
        loss = tf.reduce_sum(x)
        if loss > 3:
            break
        while tf.reduce_sum(x) < 9:
            x = x * 2

data = data.map(lambda x: x if tf.reduce_sum(x) > 0 else -x)
""",
    "disabled autograph, decorated": """
@tf.function(autograph=False)
def step(x: tf.Tensor, rounds: int):
    while tf.reduce_sum(x) < 9:  # TPU002 error
        x = x + 1
    for row in x:  # TPU002 error
        x = x + row
    for i in range(tf.reduce_max(x)):  # TPU002 error
        x = x + i
    for _ in range(rounds):
        x = x + 1
    for one in (x, x):
        x = x + one
    for one in tf.unstack(x):
        x = x + one
    if rounds > 3:
        x = x - 1
    if not tf.reduce_any(x > 0):  # TPU001 error
        x = x - 1
    return helper(x)

def helper(x):
    return x if tf.reduce_sum(x) > 0 else -x  # TPU001 error
""",
    "disabled autograph, under its own name": """
def step(x: tf.Tensor):
    if tf.reduce_sum(x) > 0:  # TPU001 error
        x = -x
    return x

step = tf.function(step, autograph=False)
step(tf.ones([8]))
""",
    "gradients through loops": """
cell = tf.Variable(tf.eye(4))

@tf.function
def step(x: tf.Tensor, lengths: tf.Tensor):
    while tf.reduce_sum(x) < 9:
        x = x * 2
    count = 0
    with tf.GradientTape() as tape:
        while tf.reduce_sum(x) < 9:  # TPU003 error
            x = tf.tanh(x @ cell)
        while tf.reduce_sum(x) < 9:
            tf.autograph.experimental.set_loop_options(maximum_iterations=9)
            x = tf.tanh(x @ cell)
        while count < lengths[0]:
            count += 1
        for i in tf.range(tf.shape(x)[0]):
            x = tf.tanh(x @ cell)
        for i in tf.range(tf.reduce_max(lengths)):  # TPU003 error
            x = tf.tanh(x @ cell)
        for row in x:
            x = tf.tanh(x @ cell)
        x = tf.while_loop(is_small, lambda x: x * x, (x,))  # TPU003 error
        x = tf.while_loop(is_small, lambda x: x * x, (x,), maximum_iterations=9)
        x = inner(x)
    return tape.gradient(x, cell)

def is_small(x):
    return tf.reduce_sum(x) < 9

def inner(x):
    while tf.reduce_sum(x) < 9:  # TPU003 error
        x = x * x
    return x
""",
}


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS)
def test_findings_in_programs_match_markers(source: str, tmp_path: Path) -> None:
    check(tmp_path, source)
