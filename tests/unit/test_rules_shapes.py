"""Shapes that depend on values, and the suggested rewrite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rule_checker import RuleChecker
from tpuctl.preflight.findings import Target

CODES = ("TPU1",)
NEW = Target("vm", "2.18.0", 8)
HEAD = "import tensorflow as tf\nimport keras\n\n"


def program(body: str) -> str:
    return f"{HEAD}@tf.function\ndef step(x, ids, mask, size: int = 4):\n    {body}\n    return x\n"


@pytest.mark.parametrize(
    "body",
    [
        "x = tf.boolean_mask(x, mask)  # TPU101 cost",
        "x = tf.boolean_mask(x, [True, False])",
        "x = x[x > 0]  # TPU102 cost",
        "x = x[mask]  # TPU102 cost",
        "x = x[:, tf.not_equal(ids, 0)]  # TPU102 cost",
        "x = x[0] + x[-1] + x[size] + x[tf.argmax(ids)] + x[..., 0] + x[:, None]",
        "x = tf.where(x > 0)  # TPU103 cost",
        "x = tf.where(x > 0, x, 0.0)",
        "x = keras.ops.nonzero(x)  # TPU103 cost",
        "x = tf.unique(ids)[0]  # TPU104 cost",
        "x = tf.unique_with_counts(ids)[0]  # TPU104 error",
        "x = tf.dynamic_partition(x, ids, 2)[0]  # TPU104 cost",
        "x = tf.dynamic_partition(x, [0, 1], 2)[0]",
        "x = x[:, : tf.reduce_max(ids)]  # TPU105 cost",
        "x = x[:, : tf.shape(ids)[0] // 2] + x[:, :size]",
        "x = tf.range(tf.reduce_max(ids))  # TPU105 error",
        "x = tf.range(tf.shape(x)[0])",
        "x = tf.zeros([tf.reduce_sum(ids), 4])  # TPU105 error",
        "x = tf.zeros([tf.shape(x)[0], size])",
        "x = tf.repeat(x, tf.reduce_max(ids))  # TPU105 error",
        "x = tf.repeat(x, size, axis=0)",
        "x = tf.sequence_mask(ids)  # TPU105 error",
        "x = tf.sequence_mask(ids, 8)",
        "x = tf.one_hot(ids, tf.reduce_max(ids) + 1)  # TPU105 error",
        "x = tf.one_hot(ids, size)",
        "x = tf.reshape(x, [-1, size])",
        "for i in tf.range(tf.reduce_max(ids)): x = x + 1  # TPU105 error",
        "x = tf.ragged.boolean_mask(x, mask)  # TPU106 cost",
        "x = tf.RaggedTensor.from_row_lengths(x, ids).to_tensor()  # TPU106 error",
        "x = tf.RaggedTensor.from_row_lengths(x, ids).values",
    ],
)
def test_dynamic_shapes_in_a_step(body: str, tmp_path: Path) -> None:
    RuleChecker(tmp_path, *CODES).assert_marked(program(body), NEW)


@pytest.mark.parametrize(
    ("line", "rewrite"),
    [
        (
            "total = tf.reduce_mean(tf.boolean_mask(errors, mask))",
            "    weights = tf.cast(mask, errors.dtype)\n"
            "    total = tf.reduce_sum(errors * weights) / tf.reduce_sum(weights)",
        ),
        (
            "total = tf.reduce_sum(errors[errors > 0])",
            "    weights = tf.cast(errors > 0, errors.dtype)\n"
            "    total = tf.reduce_sum(errors * weights)",
        ),
    ],
)
def test_hint_uses_names_from_source(line: str, rewrite: str, tmp_path: Path) -> None:
    source = f"{HEAD}@tf.function\ndef step(errors, mask):\n    {line}\n    return total\n"
    (finding,) = RuleChecker(tmp_path, *CODES).findings(source, NEW, {})
    assert finding.hint.endswith(rewrite)
    assert finding.edits == ()  # with an empty mask the mean would differ


PROGRAMS = {
    "pipeline and plain Python": """
def prepare(ids):
    ids = tf.boolean_mask(ids, ids > 0)
    return tf.unique(ids[ids > 3])[0][: tf.reduce_max(ids)]

data = data.map(prepare).map(lambda ids: tf.where(ids > 0))
kept = tf.boolean_mask(table, table > 0)
""",
    "helper with its callers' arguments": """
class Pool(keras.layers.Layer):
    def call(self, x, lengths):
        return self.cut(x, 4) + self.cut(x, tf.shape(x)[1]) + self.cut(x, lengths[0])

    def cut(self, x, end):
        return x[:, :end]  # TPU105 cost


class Fixed(keras.layers.Layer):
    def call(self, x):
        return self.cut(x, 4) + self.cut(x, tf.shape(x)[1])

    def cut(self, x, end):
        return x[:, :end]
""",
}


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS)
def test_findings_in_programs_match_markers(source: str, tmp_path: Path) -> None:
    RuleChecker(tmp_path, *CODES).assert_marked(HEAD + source, NEW)
