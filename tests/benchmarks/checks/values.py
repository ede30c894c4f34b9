"""Checks that a function of values does what the function that changes variables does."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "programs"))

import numpy as np
import tensorflow as tf
from functional import FunctionOfValues

table = tf.Variable(np.arange(12.0, dtype="float32").reshape(4, 3))
count = tf.Variable(0, dtype=tf.int64)
never = tf.Variable(tf.ones([3]))
LARGE = tf.reshape(tf.range(3000.0), [1000, 3])


def step(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Reads before and after writing, by each kind of operation that there is."""
    before = tf.reduce_sum(tf.gather(table, rows) * never)
    count.assign_add(2)
    table.assign(table * 2)
    table.assign_sub(tf.ones([4, 3]) * tf.cast(count, tf.float32))
    halved(table)
    return before, tf.reduce_sum(tf.gather(table, rows)) + tf.reduce_sum(LARGE)


@tf.function
def halved(variable: tf.Variable) -> None:
    variable.assign(variable / 2)


given = tf.constant([0, 2, 3])
concrete = tf.function(step).get_concrete_function(tf.TensorSpec([3], tf.int32))
values = FunctionOfValues(concrete)
named = {id(table): "table", id(count): "count", id(never): "never"}
names = [named[id(variable)] for variable in values.variables]
assert sorted(names) == ["count", "never", "table"], names
assert {names[place] for place in values.changed} == {"count", "table"}

for _ in range(2):  # the second time from other values
    first = [variable.numpy() for variable in values.variables]
    found = [one.numpy() for one in tf.function(values)(*map(tf.constant, first), given)]
    # Handing values in and out changes no variable.
    for variable, value in zip(values.variables, first, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    wanted = [one.numpy() for one in concrete(given)]
    wanted += [values.variables[place].numpy() for place in values.changed]
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@tf.function
def looping(rows: tf.Tensor) -> None:
    for _ in tf.range(tf.size(rows)):
        count.assign_add(1)


try:
    FunctionOfValues(looping.get_concrete_function(tf.TensorSpec([3], tf.int32)))
except ValueError as error:
    assert "uses a variable" in str(error), error
else:
    raise AssertionError("a variable within a loop")
print("checked")
