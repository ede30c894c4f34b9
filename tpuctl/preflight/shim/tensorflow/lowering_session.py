"""Captures the training step before it runs, and lowers it for the host, for each batch size."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf  # type: ignore[import-untyped, import-not-found, unused-ignore]

from ..observation.host_connection import LoweringFailed, serve
from ..observation.settings import load
from ..observation.user_lines import UserLines, Where
from .looped_arguments import is_looped
from .lowering import lower, trace


def lower_step(
    function: Callable[..., Any],
    arguments: Iterable[Any] = (),
    keywords: dict[str, Any] | None = None,
    replicas: int = 1,
    *,
    where: Where | None = None,
    batched: Sequence[bool] | None = None,
    is_soft: bool = False,
) -> NoReturn:
    """Lower `function`, which one replica runs, for the host, then exit the process.

    Arguments are those of one replica: tensors, their specs, or other values, which are constants.
    `batched` says which tensors have the batch as their first dimension: by default those with the
    same first dimension as the first tensor that is not a scalar. `is_soft` says that TensorFlow
    may run operations on a TPU's host.
    """
    settings = load(os.environ["TPUCTL_REHEARSAL"])
    lines = UserLines(settings.root)

    def capture() -> Step:
        flat = list(arguments), dict(keywords or {})
        step = Step(function, *flat, batched, replicas=replicas, where=where, lines=lines)
        step.is_soft = is_soft
        return step

    serve(settings, capture)


class Step:
    """A captured step, whose batch size can be replaced."""

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: list[Any],
        keywords: dict[str, Any],
        batched: Sequence[bool] | None,
        *,
        replicas: int,
        where: Where | None,
        lines: UserLines,
    ) -> None:
        self.function, self.replicas, self.where, self.lines = function, replicas, where, lines
        self.flat = [_spec(value) for value in tf.nest.flatten((arguments, keywords))]
        self.structure = (arguments, keywords)
        tensors = [value for value in self.flat if isinstance(value, tf.TensorSpec)]
        first = next((tensor.shape[0] for tensor in tensors if tensor.shape.rank), None)
        self.batch: int | None = first
        self.batched = list(
            batched or (bool(tensor.shape.rank) and tensor.shape[0] == first for tensor in tensors)
        )
        self.tensors = tensors
        self.is_soft = False
        self.looped: str | None = None  # the argument that may have the batch, in a loop
        unknown = [str(tensor.shape) for tensor in tensors if not _is_known(tensor.shape)]
        if unknown:
            message = f"unknown shapes of the step's arguments: {', '.join(unknown)}"
            raise LoweringFailed(message, "tpuctl")
        if batched is None and any(self.batched):
            self._leave_loops()

    def _leave_loops(self) -> None:
        """Have no batch if the step takes the first tensor element by element."""
        number = self.batched.index(True)
        try:
            graph = trace(self.function, *self.with_batch(None), self.lines).graph
        except LoweringFailed:
            return  # reported when it is lowered
        tensor = graph.inputs[number]
        if is_looped(graph, tensor):
            self.looped = tensor.op.name
            self.batch, self.batched = None, [False] * len(self.tensors)

    def describe(self) -> dict[str, Any]:
        return {
            "replicas": self.replicas,
            "function": getattr(self.function, "__name__", type(self.function).__name__),
            "where": self.where or self.lines.definition(self.function) or self.lines.current(),
            "batch": self.batch,
            "has_batch": any(self.batched),
            "looped": self.looped,
            "inputs": [[tensor.dtype.name, tensor.shape.as_list()] for tensor in self.tensors],
            "tensorflow": tf.__version__,
        }

    def lower(self, batch: int | None, folder: Path) -> dict[str, Any]:
        lowered = lower(self.function, *self.with_batch(batch), self.lines, is_soft=self.is_soft)
        program = folder / f"{batch}.hlo"
        program.write_bytes(lowered.program)
        details = {name: value for name, value in vars(lowered).items() if name != "program"}
        return {"kind": "lowered", "program": str(program), **details}

    def with_batch(self, batch: int | None) -> tuple[list[Any], dict[str, Any]]:
        """The arguments with another batch size."""
        flat, flags = list(self.flat), iter(self.batched)
        for position, value in enumerate(flat):
            if isinstance(value, tf.TensorSpec) and next(flags) and batch is not None:
                flat[position] = tf.TensorSpec([batch, *value.shape[1:]], value.dtype)
        arguments, keywords = tf.nest.pack_sequence_as(self.structure, flat)
        return arguments, keywords


def _is_known(shape: Any) -> bool:
    """Whether all dimensions but the first are known."""
    return shape.rank is not None and None not in shape.as_list()[1:]


def _spec(value: Any) -> Any:
    """The spec of a tensor, of the first replica if there are several; other values unchanged."""
    if isinstance(value, tf.distribute.DistributedValues):
        return _spec(value._values[0])
    if isinstance(value, tf.data.Iterator):
        message = "the step takes an iterator, whose elements are unknown in advance"
        raise LoweringFailed(message, "tpuctl")
    if isinstance(value, tf.TensorSpec):
        return tf.TensorSpec(value.shape, value.dtype)
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor, tf.TypeSpec)):
        raise LoweringFailed(f"{type(value).__name__} among the step's arguments", "tpuctl")
    if tf.is_tensor(value) or hasattr(value, "__array_interface__"):
        return tf.TensorSpec(value.shape, value.dtype)
    return value
