"""The connection to the host, which requests a captured step for different batch sizes.

The host listens on the socket `conversation` in the settings' folder. It receives `captured`, then
requests batch sizes, one JSON line each, and receives what became of the step or the reason why
lowering failed. The script exits when the host disconnects.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

from .settings import Settings
from .user_lines import Where

SOCKET = "conversation"


class LoweringFailed(Exception):
    """A step cannot be lowered; the message is the compiler's.

    `operations` are {"operation": type, "where": the user's line}. `origin` is `script` if tracing
    the step failed, `compiler`, or `tpuctl` if tpuctl cannot lower the step although a TPU may run
    it.
    """

    def __init__(
        self,
        message: str,
        origin: str,
        where: Where | None = None,
        operations: Sequence[dict[str, Any]] = (),
    ) -> None:
        super().__init__(message)
        self.origin, self.where, self.operations = origin, where, list(operations)


class CapturedStep(Protocol):
    """A training step of a framework, to lower for any batch size."""

    def describe(self) -> dict[str, Any]:
        """The step, for the host."""

    def lower(self, batch: int | None, folder: Path) -> dict[str, Any]:
        """The reply for a batch size, with files in a folder. Raises LoweringFailed."""


def serve(settings: Settings, capture: Callable[[], CapturedStep]) -> NoReturn:
    """Capture a step, lower it as the host requests until that disconnects, and exit."""
    assert settings.compile is not None
    folder = Path(settings.compile["folder"])
    with connect(settings) as host:
        try:
            step = capture()
            send(host, {"kind": "captured", **step.describe()})
            with host.makefile("r", encoding="utf-8") as requests:
                for line in requests:
                    batch = json.loads(line)["batch"]
                    send(host, {"batch": batch, **_lower(step, batch, folder)})
        except LoweringFailed as error:
            send(host, _refusal(error))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the host disconnected
        except Exception:
            send(host, {"kind": "failed", "traceback": traceback.format_exc()})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def connect(settings: Settings) -> socket.socket:
    assert settings.compile is not None
    host = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    host.connect(os.path.join(settings.compile["folder"], SOCKET))
    return host


def send(host: socket.socket, message: dict[str, Any]) -> None:
    host.sendall(json.dumps(message).encode() + b"\n")


def _lower(step: CapturedStep, batch: int | None, folder: Path) -> dict[str, Any]:
    began = time.monotonic()
    try:
        reply = step.lower(batch, folder)
    except LoweringFailed as error:
        return _refusal(error)
    return {"seconds": round(time.monotonic() - began, 3), **reply}


def _refusal(error: LoweringFailed) -> dict[str, Any]:
    return {
        "kind": "refused",
        "message": str(error),
        "origin": error.origin,
        "where": error.where,
        "operations": error.operations,
    }
