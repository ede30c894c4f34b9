"""Checks that the rewritten, side-effect-free step equals the step that changes variables.

    step_values.py FOLDER_OF_THE_SHIM

Runs in a runtime's Python; each step runs twice, the second time with other values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(sys.argv[1]).parent))  # last: its modules have common names

import numpy as np
import tensorflow as tf
from shim.tensorflow.pure_function import ImpureOperation, PureFunction

rows_index = tf.constant([0, 2, 3])
table = tf.Variable(np.arange(12.0, dtype="float32").reshape(4, 3) / 10)
mean, square, frozen = (tf.Variable(tf.ones([4, 3]) * factor) for factor in (0.1, 0.2, 0.3))
count = tf.Variable(0, dtype=tf.int64)
scale = tf.Variable([1.0, 1.1, 0.9])
flag = tf.Variable(True)
generator = tf.random.Generator.from_seed(3)
LARGE = tf.reshape(tf.range(3000.0), [1000, 3])
BY_HANDLE = {
    id(variable.handle): variable
    for variable in (table, mean, square, frozen, count, scale, flag, generator.state)
}


@tf.function
def halved(variable: tf.Variable) -> None:
    variable.assign(variable / 2)


def reading_and_writing(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    before = tf.reduce_sum(tf.gather(table, rows) * scale)
    count.assign_add(2)
    table.assign(table * 2)
    table.assign_sub(tf.ones([4, 3]) * tf.cast(count, tf.float32))
    halved(table)
    return before, tf.reduce_sum(tf.gather(table, rows)) + tf.reduce_sum(LARGE)


def within_loops_and_branches(rows: tf.Tensor) -> tf.Tensor:
    for number in tf.range(tf.size(rows)):
        count.assign_add(1)
        if tf.reduce_sum(table) > tf.cast(number, tf.float32):
            table.scatter_sub(tf.IndexedSlices(tf.ones([1, 3]), rows[:1]))
        else:
            scale.assign(scale + 1)
            halved(table)
    branches = [lambda: scale + 0, lambda: scale.assign(scale * 3) + 0, lambda: scale * 2]
    selected = tf.switch_case(tf.size(rows) - 2, branches)
    return selected + tf.cond(flag, lambda: tf.reduce_sum(scale), lambda: 0.0)


def gradient_through_a_loop(rows: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        raised = table * 1
        for _ in tf.range(3):
            raised = raised * scale
        loss = tf.reduce_mean(tf.gather(raised, rows) ** 2)
    table.assign_sub(0.1 * tf.convert_to_tensor(tape.gradient(loss, table)))
    return loss


def random_and_in_place(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    first = generator.uniform([2])
    table[1:2].assign(tf.ones([1, 3]) * 7)
    table.scatter_nd_add([[0], [0]], tf.ones([2, 3]))
    table.scatter_max(tf.IndexedSlices(tf.zeros([3, 3]), rows))
    return first, generator.normal([2])


def optimizing(operation: str, slots: dict[str, tf.Variable], **numbers: object) -> Callable:
    def step(rows: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(table**2 * scale)
        gradient = tape.gradient(loss, table)
        kind = "delta" if operation.endswith("Descent") else "grad"
        handles = {name: slot.handle for name, slot in slots.items()}
        change = getattr(tf.raw_ops, operation)
        change(var=table.handle, **handles, **numbers, **{kind: gradient})

    return step


BETAS = {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-3}
ADAM = {"m": mean, "v": square}
RMS = {"lr": 0.1, "rho": 0.9, "momentum": 0.5, "epsilon": 0.1}
STEPS = [
    reading_and_writing,
    within_loops_and_branches,
    gradient_through_a_loop,
    random_and_in_place,
    optimizing("ResourceApplyGradientDescent", {}, alpha=0.1),
    optimizing("ResourceApplyMomentum", {"accum": mean}, lr=0.1, momentum=0.5, use_nesterov=True),
    optimizing("ResourceApplyMomentum", {"accum": mean}, lr=0.1, momentum=0.5),
    optimizing("ResourceApplyKerasMomentum", {"accum": mean}, lr=0.1, momentum=0.5),
    optimizing(
        "ResourceApplyKerasMomentum", {"accum": mean}, lr=0.1, momentum=0.5, use_nesterov=True
    ),
    optimizing("ResourceApplyAdam", ADAM, beta1_power=0.9, beta2_power=0.99, lr=0.1, **BETAS),
    optimizing(
        "ResourceApplyAdam",
        ADAM,
        beta1_power=0.9,
        beta2_power=0.99,
        lr=0.1,
        use_nesterov=True,
        **BETAS,
    ),
    optimizing("ResourceApplyAdaMax", ADAM, beta1_power=0.9, lr=0.1, **BETAS),
    optimizing("ResourceApplyAdagrad", {"accum": square}, lr=0.1),
    optimizing("ResourceApplyAdagradV2", {"accum": square}, lr=0.1, epsilon=1e-3),
    optimizing("ResourceApplyRMSProp", {"ms": square, "mom": frozen}, **RMS),
    optimizing("ResourceApplyCenteredRMSProp", {"mg": mean, "ms": square, "mom": frozen}, **RMS),
    optimizing(
        "ResourceApplyAdadelta",
        {"accum": mean, "accum_update": square},
        lr=0.1,
        rho=0.9,
        epsilon=1e-3,
    ),
]


def compare(step: Callable) -> None:
    concrete = tf.function(step).get_concrete_function(tf.TensorSpec([3], tf.int32))
    values = PureFunction(concrete)
    handles = {
        id(variable): variable
        for variable in concrete.captured_inputs
        if variable.dtype == tf.resource
    }
    variables = [BY_HANDLE[key] for key in handles]
    assert [variable.shape for variable in values.variables] == [
        variable.shape for variable in variables
    ]
    of_values = tf.function(values, autograph=False)
    for _ in range(2):
        first = [variable.numpy() for variable in variables]
        computed = [result.numpy() for result in of_values(*map(tf.constant, first), rows_index)]
        for variable, value in zip(variables, first, strict=True):
            np.testing.assert_array_equal(variable.numpy(), value)  # unchanged by it
        results = [
            result.numpy() for result in tf.nest.flatten(concrete(rows_index)) if result is not None
        ]
        after = [variable.numpy() for variable in variables]
        places = range(len(variables))
        really = {place for place in places if not np.array_equal(first[place], after[place])}
        assert really <= set(values.updated_variables), (step, really, values.updated_variables)
        expected = [*results, *(after[place] for place in values.updated_variables)]
        assert len(computed) == len(expected)
        for actual, other in zip(computed, expected, strict=True):
            assert np.all(np.isfinite(other))
            np.testing.assert_allclose(actual, other, rtol=1e-5, atol=1e-6)


for step in STEPS:
    compare(step)

try:
    lost = optimizing(
        "ResourceApplyFtrl",
        {"accum": square, "linear": mean},
        lr=0.1,
        l1=0.0,
        l2=0.0,
        lr_power=-0.5,
    )
    refused = PureFunction(tf.function(lost).get_concrete_function(tf.TensorSpec([3], tf.int32)))
    specs = [*refused.variables, tf.TensorSpec([3], tf.int32)]
    tf.function(refused, autograph=False).get_concrete_function(*specs)
except ImpureOperation as error:
    assert error.operation.type == "ResourceApplyFtrl"
else:
    raise AssertionError("an unsupported optimizer was accepted")
print("checked", len(STEPS))
