"""Ragged tensors in code that is compiled (TPU106)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.abstract_values import Kind
from tpuctl.preflight.analysis.inference import Inference
from tpuctl.preflight.analysis.library import CONSTANT_ROWS
from tpuctl.preflight.analysis.traced import Traced
from tpuctl.preflight.findings import Finding, Severity
from tpuctl.preflight.rules.places import at, shown

__all__ = ["ragged", "ragged_method"]

RAGGED_ERRORS = {"to_tensor", "to_sparse", "bounding_shape"}
RAGGED_REFUSED = {"gather", "concat", "stack", "map_fn", "gather_nd", "tile", "expand_dims"}


def ragged(known: Inference, one: Traced, node: ast.Call, inside: str) -> Iterator[Finding]:
    last = inside.rpartition(".")[2]
    lacking = {"ragged.range": "RaggedRange", "ragged.cross": "RaggedCross"}
    if inside == "RaggedTensor.from_tensor" and (
        {key.arg for key in node.keywords} & {"lengths", "padding"} or len(node.args) > 1
    ):
        message = f"{shown(one.module, node)} has rows whose lengths depend on values"
        hint = "Keep the whole shape and give what is padded the weight 0."
        yield at(one, node, "TPU106", Severity.cost, message, hint)
    elif inside == "RaggedTensor.from_value_rowids":
        message = f"{shown(one.module, node)} makes a shape from the largest value"
        yield at(one, node, "TPU106", Severity.error, message, _DENSE)
    elif inside in lacking:
        message = f"{shown(one.module, node)} makes {lacking[inside]}, which XLA has not for a TPU"
        yield at(one, node, "TPU106", Severity.error, message, _DENSE)
    elif last.startswith("reduce_") and (len(node.args) > 1 or node.keywords):
        value = known.of(node.args[0] if node.args else None)
        if value.kind is Kind.RAGGED and value.name != CONSTANT_ROWS:
            message = f"{shown(one.module, node)} makes a shape from the largest value"
            yield at(one, node, "TPU106", Severity.error, message, _DENSE)
    elif last in RAGGED_REFUSED and _takes_ragged(known, node):
        message = f"{shown(one.module, node)} of a ragged tensor, which XLA has not for a TPU"
        yield at(one, node, "TPU106", Severity.error, message, _DENSE)


def _takes_ragged(known: Inference, node: ast.Call) -> bool:
    values = [known.of(given) for given in node.args]
    return any(
        value.kind is Kind.RAGGED or any(item.kind is Kind.RAGGED for item in value.items or ())
        for value in values
    )


def ragged_method(
    known: Inference, one: Traced, node: ast.Call, func: ast.Attribute
) -> Iterator[Finding]:
    if known.of(func.value).kind is Kind.RAGGED and func.attr in RAGGED_ERRORS:
        message = f"{shown(one.module, node)} of a ragged tensor, which XLA has not for a TPU"
        yield at(one, node, "TPU106", Severity.error, message, _DENSE)


_DENSE = "Make it dense in dataset.map, on the host: rows.to_tensor(shape=[…])."
