"""Finds arguments whose first dimension is one of a loop in the step, not the batch."""

from __future__ import annotations

from typing import Any

from .pure_function import BRANCHES, IDENTITIES, called_graphs, required_operations

COPIES = (*IDENTITIES, "Cast")


def is_looped(graph: Any, tensor: Any) -> bool:
    """Whether a graph takes a tensor element by element of its first dimension: in a loop over it,
    in tf.scan or tf.map_fn, or by indexing."""
    for operation in required_operations(graph):
        for position, value in enumerate(operation.inputs):
            if value is tensor and (
                _takes_elements(operation, position) or _passes_on(operation, position)
            ):
                return True
    return False


def _takes_elements(operation: Any, position: int) -> bool:
    if position:
        return False
    if operation.type == "TensorListFromTensor":
        return True
    if operation.type == "Unpack":
        return int(operation.get_attr("axis")) == 0
    if operation.type == "StridedSlice":
        return bool(operation.get_attr("shrink_axis_mask") & 1)
    return operation.type in COPIES and is_looped(operation.graph, operation.outputs[0])


def _passes_on(operation: Any, position: int) -> bool:
    """Whether a function, a body or a branch that gets the tensor takes it element by element."""
    position -= operation.type in BRANCHES
    return position >= 0 and any(
        is_looped(body, body.inputs[position])
        for body in called_graphs(operation)
        if position < len(body.inputs)
    )
