"""For programs: one JSON envelope at the end, and events as JSON lines where asked for."""

from __future__ import annotations

import base64
import dataclasses
import json
import sys
from collections.abc import Sequence
from enum import Enum
from typing import Any

from tpuctl.errors import Diagnostic
from tpuctl.model.events import Event, LogChunk, Warned

__all__ = ["ENVELOPE_VERSION", "Machine", "envelope"]

ENVELOPE_VERSION = 1


def envelope(
    command: str, exit_code: int, data: Any, diagnostics: Sequence[Diagnostic]
) -> dict[str, Any]:
    """The one shape of every answer, failures included."""
    return {
        "version": ENVELOPE_VERSION,
        "command": command,
        "status": "ok" if exit_code == 0 else "failed",
        "exit_code": exit_code,
        "data": data,
        "diagnostics": [one.as_dict() for one in diagnostics],
    }


class Machine:
    """Silent but for the envelope; with `events` each event is a JSON line on stdout.

    The job's own output goes to stderr, so that stdout stays JSON.
    """

    def __init__(self, *, events: bool = False) -> None:
        self.events = events
        self.diagnostics: list[Diagnostic] = []

    def on(self, event: Event) -> None:
        if isinstance(event, Warned):
            self.diagnostics.append(event.diagnostic)
        if self.events:
            print(json.dumps(_as_dict(event), ensure_ascii=False), flush=True)
        elif isinstance(event, LogChunk):
            sys.stderr.buffer.write(event.data)
            sys.stderr.buffer.flush()

    def problems(self, diagnostics: Sequence[Diagnostic]) -> None:
        self.diagnostics += diagnostics

    def close(self) -> None:
        sys.stdout.flush()


def _as_dict(event: Event) -> dict[str, Any]:
    fields = dataclasses.asdict(event)
    if isinstance(event, LogChunk):
        try:
            fields["data"] = event.data.decode("utf-8")
        except UnicodeDecodeError:
            fields["data"] = base64.b64encode(event.data).decode("ascii")
            fields["encoding"] = "base64"
    plain = {name: one.value if isinstance(one, Enum) else one for name, one in fields.items()}
    return {"event": type(event).__name__, **plain}
