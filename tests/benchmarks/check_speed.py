"""How long the `tpuctl check` command takes for a project of 2,000 lines."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.figures import TPUCTL, Figure, goal, sized, wall

FILES = sized(10, 2)
LINES = sized(2_000, 100)
GOAL = 0.15  # seconds
SCRIPTS = sized(20, 2)  # of a folder, which import the same package
FOLDER_GOAL = 2.0  # times one of them
HEAD = '''"""A part of a model."""

import tensorflow as tf

from package import {next}


'''
PART = '''class Block{number}(tf.keras.layers.Layer):
    """Attention and what follows it."""

    def __init__(self, width: int, heads: int, **options):
        super().__init__(**options)
        self.attention = tf.keras.layers.MultiHeadAttention(heads, width // heads)
        self.norm = tf.keras.layers.LayerNormalization(epsilon=1e-6)
        self.dense = tf.keras.layers.Dense(width, activation="gelu")

    def call(self, inputs, training=False, mask=None):
        mixed = self.attention(inputs, inputs, attention_mask=mask, training=training)
        inputs = self.norm(inputs + mixed)
        if training:
            inputs = tf.nn.dropout(inputs, rate=0.1)
        weights = tf.cast(tf.not_equal(inputs, 0.0), tf.float32)
        return self.norm(inputs + self.dense(inputs) * weights)


def loss_{number}(labels, logits):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    weights = tf.cast(labels > 0, tf.float32)
    return tf.reduce_sum(losses * weights) / tf.maximum(tf.reduce_sum(weights), 1.0)


'''
SCRIPT = '''"""Trains it."""

import tensorflow as tf

from package import part0


@tf.function
def step(strategy, batch):
    return strategy.run(part0.loss_0, args=batch)


data = tf.data.Dataset.range(1000).batch(128, drop_remainder=True)
'''


def check_speed() -> Iterator[Figure]:
    """`tpuctl check` compared with an empty Python and with the command line's own startup; and of
    a folder of scripts compared with one of them."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as folder:
        script = Path(folder) / "train.py"
        lines = _write(script)
        bare = wall([sys.executable, "-c", "pass"])
        start = wall([*TPUCTL, "--version"])
        tpuctl_seconds = wall([*TPUCTL, "check", str(script)])
        for number in range(1, SCRIPTS):
            (script.parent / f"train{number}.py").write_text(SCRIPT, "utf-8")
        folder_seconds = wall([*TPUCTL, "check", folder])
    comparison = (
        f"{tpuctl_seconds / bare:.1f} × python -c pass, "
        f"{tpuctl_seconds / start:.1f} × tpuctl --version"
    )
    yield Figure(
        f"tpuctl check, {lines} lines in {FILES + 1} files",
        f"{tpuctl_seconds:.3f} s",
        comparison,
        goal(f"{GOAL:g} s", tpuctl_seconds <= GOAL),
    )
    ratio = folder_seconds / tpuctl_seconds
    yield Figure(
        f"tpuctl check of a folder, {SCRIPTS} scripts that import the same {FILES} files",
        f"{folder_seconds:.3f} s",
        f"{ratio:.1f} × one of the scripts",
        goal(f"{FOLDER_GOAL:g} ×", ratio <= FOLDER_GOAL),
    )


def _write(script: Path) -> int:
    """Write the project of a script; return its number of lines."""
    package = script.parent / "package"
    package.mkdir()
    texts = {package / "__init__.py": "", script: SCRIPT}
    for number in range(FILES):
        text = HEAD.format(next=f"part{(number + 1) % FILES}")
        block = 0
        while text.count("\n") < LINES // FILES:
            text += PART.format(number=block)
            block += 1
        texts[package / f"part{number}.py"] = text
    for path, text in texts.items():
        path.write_text(text, "utf-8")
    return sum(text.count("\n") for text in texts.values())
