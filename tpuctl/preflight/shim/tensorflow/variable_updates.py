"""Operations that read or update variables, as functions of their values.

Each function takes the operation, its `Variables`, and the inputs that are not variables.
Operations that are missing here raise ImpureOperation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf  # type: ignore[import-untyped, import-not-found, unused-ignore]


class Variables(Protocol):
    """The variables of one operation, in the order of its inputs."""

    def __getitem__(self, index: int) -> Any: ...

    def __setitem__(self, index: int, value: Any) -> None: ...


Update = Callable[[Any, Variables, list[Any]], Any]
BinaryFunction = Callable[[Any, Any], Any]
PHILOX_VALUES = 256  # values per increment of Philox's counter


def _read(_: Any, variables: Variables, __: list[Any]) -> Any:
    return tf.identity(variables[0])


def _gather(operation: Any, variables: Variables, inputs: list[Any]) -> Any:
    dims = operation.get_attr("batch_dims")
    return tf.gather(variables[0], inputs[0], batch_dims=dims, axis=dims)


def _gather_nd(_: Any, variables: Variables, inputs: list[Any]) -> Any:
    return tf.gather_nd(variables[0], inputs[0])


def _shape(operation: Any, variables: Variables, _: list[Any]) -> Any:
    return tf.shape(variables[0], out_type=operation.get_attr("out_type"))


def _is_initialized(*_: Any) -> Any:
    return tf.constant(True)


READS: dict[str, Update] = {
    "ReadVariableOp": _read,
    "ResourceGather": _gather,
    "ResourceGatherNd": _gather_nd,
    "VariableShape": _shape,
    "VarIsInitializedOp": _is_initialized,
}


def _assign(change: BinaryFunction) -> Update:
    def update(_: Any, variables: Variables, inputs: list[Any]) -> None:
        variables[0] = change(variables[0], inputs[0])

    return update


def _scatter(name: str) -> Update:
    """Update rows of a variable; the values are broadcast to the rows."""

    def update(_: Any, variables: Variables, inputs: list[Any]) -> None:
        rows, values = inputs
        value = variables[0]
        shape = tf.concat([tf.shape(rows), tf.shape(value)[1:]], axis=0)
        change = getattr(tf, f"tensor_scatter_nd_{name}")
        variables[0] = change(value, rows[..., tf.newaxis], tf.broadcast_to(values, shape))

    return update


def _scatter_nd(name: str) -> Update:
    def update(_: Any, variables: Variables, inputs: list[Any]) -> None:
        variables[0] = getattr(tf, f"tensor_scatter_nd_{name}")(variables[0], inputs[0], inputs[1])

    return update


def _slice_assign(operation: Any, variables: Variables, inputs: list[Any]) -> None:
    masks = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    begin, end, strides, value = inputs
    variables[0] = tf.raw_ops.TensorStridedSliceUpdate(
        input=variables[0],
        begin=begin,
        end=end,
        strides=strides,
        value=value,
        **{f"{mask}_mask": operation.get_attr(f"{mask}_mask") for mask in masks},
    )


def _skip_random(_: Any, variables: Variables, inputs: list[Any]) -> Any:
    """Return a generator's state, and advance its counter, without the carry to 128 bits."""
    state = variables[0]
    counter_step = tf.cast(inputs[1] * PHILOX_VALUES, state.dtype)
    variables[0] = tf.concat([state[:1] + tf.reshape(counter_step, [1]), state[1:]], axis=0)
    return tf.identity(state)


# Optimizers, as tensorflow/core/kernels/training_ops.cc documents them. ---------------------


def _descent(_: Any, variables: Variables, inputs: list[Any]) -> None:
    rate, gradient = inputs
    variables[0] = variables[0] - rate * gradient


def _momentum(operation: Any, variables: Variables, inputs: list[Any]) -> None:
    rate, gradient, momentum = inputs
    accumulated = variables[1] * momentum + gradient
    nesterov = operation.get_attr("use_nesterov")
    step = gradient * rate + accumulated * momentum * rate if nesterov else rate * accumulated
    variables[0], variables[1] = variables[0] - step, accumulated


def _keras_momentum(operation: Any, variables: Variables, inputs: list[Any]) -> None:
    rate, gradient, momentum = inputs
    accumulated = variables[1] * momentum - rate * gradient
    nesterov = operation.get_attr("use_nesterov")
    step = accumulated * momentum - rate * gradient if nesterov else accumulated
    variables[0], variables[1] = variables[0] + step, accumulated


def _adam(operation: Any, variables: Variables, inputs: list[Any]) -> None:
    power_1, power_2, rate, beta_1, beta_2, epsilon, gradient = inputs
    mean = variables[1] + (gradient - variables[1]) * (1 - beta_1)
    square = variables[2] + (gradient * gradient - variables[2]) * (1 - beta_2)
    rate = rate * tf.sqrt(1 - power_2) / (1 - power_1)
    nesterov = operation.get_attr("use_nesterov")
    step = mean * beta_1 + gradient * (1 - beta_1) if nesterov else mean
    variables[0] = variables[0] - rate * step / (tf.sqrt(square) + epsilon)
    variables[1], variables[2] = mean, square


def _adamax(_: Any, variables: Variables, inputs: list[Any]) -> None:
    power_1, rate, beta_1, beta_2, epsilon, gradient = inputs
    mean = variables[1] * beta_1 + gradient * (1 - beta_1)
    maximum = tf.maximum(variables[2] * beta_2, tf.abs(gradient))
    variables[0] = variables[0] - rate / (1 - power_1) * mean / (maximum + epsilon)
    variables[1], variables[2] = mean, maximum


def _adagrad(_: Any, variables: Variables, inputs: list[Any]) -> None:
    rate, *epsilon, gradient = inputs
    sums = variables[1] + gradient * gradient
    root = tf.sqrt(sums) + epsilon[0] if epsilon else tf.sqrt(sums)
    variables[0], variables[1] = variables[0] - rate * gradient / root, sums


def _rms_prop(_: Any, variables: Variables, inputs: list[Any]) -> None:
    rate, rho, momentum, epsilon, gradient = inputs
    square = variables[1] + (gradient * gradient - variables[1]) * (1 - rho)
    accumulated = momentum * variables[2] + rate * gradient / tf.sqrt(square + epsilon)
    variables[0], variables[1], variables[2] = variables[0] - accumulated, square, accumulated


def _centered_rms_prop(_: Any, variables: Variables, inputs: list[Any]) -> None:
    rate, rho, momentum, epsilon, gradient = inputs
    mean = variables[1] + (gradient - variables[1]) * (1 - rho)
    square = variables[2] + (gradient * gradient - variables[2]) * (1 - rho)
    accumulated = momentum * variables[3] + rate * gradient / tf.sqrt(
        square - mean * mean + epsilon
    )
    variables[0], variables[1] = variables[0] - accumulated, mean
    variables[2], variables[3] = square, accumulated


def _adadelta(_: Any, variables: Variables, inputs: list[Any]) -> None:
    rate, rho, epsilon, gradient = inputs
    square = variables[1] * rho + gradient * gradient * (1 - rho)
    step = tf.sqrt(variables[2] + epsilon) / tf.sqrt(square + epsilon) * gradient
    variables[2] = variables[2] * rho + step * step * (1 - rho)
    variables[0], variables[1] = variables[0] - rate * step, square


UPDATES: dict[str, Update] = {
    "AssignVariableOp": _assign(lambda _, new: new),
    "AssignAddVariableOp": _assign(lambda old, new: old + new),
    "AssignSubVariableOp": _assign(lambda old, new: old - new),
    "ResourceStridedSliceAssign": _slice_assign,
    "RngReadAndSkip": _skip_random,
    "ResourceApplyGradientDescent": _descent,
    "ResourceApplyMomentum": _momentum,
    "ResourceApplyKerasMomentum": _keras_momentum,
    "ResourceApplyAdam": _adam,
    "ResourceApplyAdaMax": _adamax,
    "ResourceApplyAdagrad": _adagrad,
    "ResourceApplyAdagradV2": _adagrad,
    "ResourceApplyRMSProp": _rms_prop,
    "ResourceApplyCenteredRMSProp": _centered_rms_prop,
    "ResourceApplyAdadelta": _adadelta,
}
for _name, _kind in (
    ("Add", "add"),
    ("Sub", "sub"),
    ("Update", "update"),
    ("Min", "min"),
    ("Max", "max"),
):
    UPDATES[f"ResourceScatter{_name}"] = _scatter(_kind)
    UPDATES[f"ResourceScatterNd{_name}"] = _scatter_nd(_kind)
