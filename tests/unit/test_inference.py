"""The inferred kinds of expressions while a program is traced."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tpuctl.preflight.analysis.program.source import load
from tpuctl.preflight.analysis.tracing.inference import infer
from tpuctl.preflight.analysis.values.abstract_values import Kind, Value
from tpuctl.preflight.findings import Target

HEAD = """import math
import numpy as np
import tensorflow as tf

SIZE = 4
table = tf.Variable(tf.zeros([4]))
limit = tf.constant(3)


class Block(tf.Module):
    def __init__(self, units: int):
        self.units = units
        self.scale = tf.Variable(1.0)

    def __call__(self, x):
        return x * self.scale


block = Block(4)


def double(value):
    return value * 2


@tf.function
def step(x, y, training=False, size: int = 3, mask=None):
    result = {expression}
    return result
"""


def value_of(folder: Path, expression: str) -> Value:
    """The inferred value of the expression in a step with tensors x and y."""
    script = folder / "train.py"
    source = HEAD.format(expression=expression)
    script.write_text(source, "utf-8")
    project = load(script)
    kinds = infer(project, Target(tensorflow="2.18.0"))
    (node,) = [
        node.value
        for node in ast.walk(project.script.tree)
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "result"
    ]
    return kinds.of(node)


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("x + 1", Kind.TENSOR),
        ("tf.reduce_sum(x)", Kind.TENSOR),
        ("x.shape[0]", Kind.STATIC),
        ("x.shape[0] * 2", Kind.STATIC),
        ("len(x.shape)", Kind.STATIC),
        ("x is None", Kind.STATIC),
        ("training and size > 2", Kind.STATIC),
        ("size * SIZE", Kind.STATIC),
        ("isinstance(x, tf.Tensor)", Kind.STATIC),
        ("x.dtype == tf.float32", Kind.STATIC),
        ("tf.compat.dimension_value(x.shape[0])", Kind.STATIC),
        ("tf.compat.v1.executing_eagerly_outside_functions()", Kind.STATIC),
        ("tf.compat.v1.control_flow_v2_enabled()", Kind.STATIC),
        ("tf.debugging.is_numeric_tensor(x)", Kind.STATIC),
        ("tf.shape(x)[0]", Kind.KNOWN),
        ("tf.shape(x)[0] // 2 + SIZE", Kind.KNOWN),
        ("tf.cast(tf.size(x), tf.float32) * 0.5", Kind.KNOWN),
        ("tf.zeros([4])", Kind.KNOWN),
        ("tf.shape(x)[0] + tf.argmax(y)", Kind.TENSOR),
        ("table", Kind.TENSOR),
        ("limit", Kind.TENSOR),  # a constant of the file is an argument of the program
        ("double(size)", Kind.STATIC),
        ("double(x)", Kind.TENSOR),
        ("block(x)", Kind.TENSOR),
        ("block.units", Kind.STATIC),
        ("tf.random.uniform([])", Kind.TENSOR),
        ("tf.RaggedTensor.from_row_lengths(x, y)", Kind.RAGGED),
        ("tf.RaggedTensor.from_row_lengths(x, y).to_tensor()", Kind.TENSOR),
        ("tf.sparse.from_dense(x)", Kind.SPARSE),
        ("tf.cond(y[0] > 0, lambda: x, lambda: x)", Kind.TENSOR),
        ("[one * 2 for one in (x, y)][0]", Kind.TENSOR),
        ("{'a': x}['a']", Kind.TENSOR),
        ("(x, size)[1]", Kind.STATIC),
        ("x if training else y", Kind.TENSOR),
        ("np.sqrt(size)", Kind.STATIC),
        ("np.unknown", Kind.OBJECT),
        ("undefined(size)", Kind.UNKNOWN),
    ],
)
def test_inferred_kinds(expression: str, kind: Kind, tmp_path: Path) -> None:
    assert value_of(tmp_path, expression).kind is kind


@pytest.mark.parametrize(
    ("expression", "is_boolean"),
    [
        ("x > 0", True),
        ("tf.not_equal(x, 0)", True),
        ("tf.logical_and(x > 0, y > 0)", True),
        ("(x > 0) & (y > 0)", True),
        ("~(x > 0)", True),
        ("tf.cast(x, tf.bool)", True),
        ("tf.reshape(x > 0, [-1])", True),
        ("tf.sequence_mask(y, 8)", True),
        ("tf.sequence_mask(y, 8, dtype=tf.float32)", False),
        ("tf.cast(x > 0, tf.float32)", False),
        ("(x > 0) * x", False),
        ("tf.argmax(x)", False),
        ("mask", True),
    ],
)
def test_booleans(expression: str, is_boolean: bool, tmp_path: Path) -> None:
    assert value_of(tmp_path, expression).is_boolean is is_boolean


@pytest.mark.parametrize("expression", ["x", "y", "mask"])
def test_argument_may_be_structure(expression: str, tmp_path: Path) -> None:
    value = value_of(tmp_path, expression)
    assert value.is_symbolic
    assert not value.is_tensor


def test_argument_kinds_come_from_calls(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import tensorflow as tf\n\n\n@tf.function\ndef step(x, depth):\n"
        "    result = depth\n    return x\n\n\n"
        "step(tf.zeros([2]), 3)\nstep(tf.ones([2]), depth=4)\n",
        "utf-8",
    )
    project = load(script)
    kinds = infer(project, Target())
    names = [
        node
        for node in ast.walk(project.script.tree)
        if isinstance(node, ast.Name) and node.id == "depth"
    ]
    assert kinds.of(names[0]).kind is Kind.STATIC
