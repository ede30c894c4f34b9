"""Captures the training step before it runs, and lowers it for each batch size that is requested.

The host listens on the socket `conversation` in the settings' folder. It receives `captured`, then
requests batch sizes, one JSON line each, and receives the program's file or the reason why
lowering failed. The script exits when the host disconnects.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf  # type: ignore[import-untyped, import-not-found, unused-ignore]

from .lowering import LoweringFailed, lower
from .settings import Settings, load
from .user_lines import UserLines, Where

__all__ = ["lower_step", "report_no_step"]

SOCKET = "conversation"


def lower_step(
    function: Callable[..., Any],
    arguments: Iterable[Any] = (),
    keywords: dict[str, Any] | None = None,
    replicas: int = 1,
    *,
    where: Where | None = None,
    batched: Sequence[bool] | None = None,
) -> NoReturn:
    """Lower `function`, which one replica runs, for the host, then exit the process.

    Arguments are those of one replica: tensors, their specs, or other values, which are constants.
    `batched` says which tensors have the batch as their first dimension: by default those with the
    same first dimension as the first tensor that is not a scalar.
    """
    settings = _settings()
    lines = UserLines(settings.root)
    with _connect(settings) as host:
        try:
            step = Step(function, list(arguments), dict(keywords or {}), batched)
            _send(host, {"kind": "captured", "replicas": replicas, **step.describe(lines, where)})
            _serve(host, step, settings, lines)
        except LoweringFailed as error:
            _send(host, _refusal(error))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the host disconnected
        except Exception:
            _send(host, {"kind": "failed", "traceback": traceback.format_exc()})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def report_no_step(searched: Sequence[str]) -> None:
    """Report to the host that the script exited without a training step."""
    with _connect(_settings()) as host:
        _send(host, {"kind": "no_step", "searched": list(searched)})


class Step:
    """A captured step, whose batch size can be replaced."""

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: list[Any],
        keywords: dict[str, Any],
        batched: Sequence[bool] | None,
    ) -> None:
        self.function = function
        self.flat = [_spec(value) for value in tf.nest.flatten((arguments, keywords))]
        self.structure = (arguments, keywords)
        tensors = [value for value in self.flat if isinstance(value, tf.TensorSpec)]
        first = next((tensor.shape[0] for tensor in tensors if tensor.shape.rank), None)
        self.batch: int | None = first
        self.batched = list(
            batched or (bool(tensor.shape.rank) and tensor.shape[0] == first for tensor in tensors)
        )
        self.tensors = tensors
        unknown = [str(tensor.shape) for tensor in tensors if not _is_known(tensor.shape)]
        if unknown:
            message = f"unknown shapes of the step's arguments: {', '.join(unknown)}"
            raise LoweringFailed(message, "tpuctl")

    def describe(self, lines: UserLines, where: Where | None) -> dict[str, Any]:
        return {
            "function": getattr(self.function, "__name__", type(self.function).__name__),
            "where": where or lines.definition(self.function) or lines.current(),
            "batch": self.batch,
            "has_batch": any(self.batched),
            "inputs": [[tensor.dtype.name, tensor.shape.as_list()] for tensor in self.tensors],
            "tensorflow": tf.__version__,
        }

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


def _serve(host: socket.socket, step: Step, settings: Settings, user_lines: UserLines) -> None:
    """Lower for each batch size that the host requests, until it disconnects."""
    assert settings.compile is not None
    folder = Path(settings.compile["folder"])
    with host.makefile("r", encoding="utf-8") as requests:
        for line in requests:
            batch = json.loads(line)["batch"]
            began = time.monotonic()
            try:
                lowered = lower(step.function, *step.with_batch(batch), user_lines)
            except LoweringFailed as error:
                _send(host, {**_refusal(error), "batch": batch})
                continue
            program = folder / f"{batch}.hlo"
            program.write_bytes(lowered.program)
            details = {name: value for name, value in vars(lowered).items() if name != "program"}
            seconds = round(time.monotonic() - began, 3)
            reply = {"batch": batch, "program": str(program), "seconds": seconds, **details}
            _send(host, {"kind": "lowered", **reply})


def _refusal(error: LoweringFailed) -> dict[str, Any]:
    return {
        "kind": "refused",
        "message": str(error),
        "origin": error.origin,
        "where": error.where,
        "operations": error.operations,
    }


def _send(host: socket.socket, message: dict[str, Any]) -> None:
    host.sendall(json.dumps(message).encode() + b"\n")


def _connect(settings: Settings) -> socket.socket:
    assert settings.compile is not None
    host = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    host.connect(os.path.join(settings.compile["folder"], SOCKET))
    return host


def _settings() -> Settings:
    return load(os.environ["TPUCTL_REHEARSAL"])
