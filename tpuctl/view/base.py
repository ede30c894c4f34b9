"""What every view can do, and the words they share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Protocol

from tpuctl.errors import Diagnostic
from tpuctl.model.events import Event, LogChunk, Outcome, StepFinished

__all__ = ["View", "ended", "indent", "write_log"]

PAST = {
    "connect": "connected",
    "create": "created",
    "delete": "deleted",
    "make": "made",
    "send": "sent",
    "start": "started",
    "update": "updated",
}


class View(Protocol):
    """Listens to events and tells them on stderr; log bytes go to stdout as they are."""

    def on(self, event: Event) -> None: ...

    def problems(self, diagnostics: Sequence[Diagnostic]) -> None:
        """Tell what went wrong."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was found."""
        ...


def ended(event: StepFinished, action: str) -> str:
    """How a finished step is told: "created", "failed"…"""
    if event.outcome is Outcome.DONE:
        return PAST.get(action, action or "done")
    return str(event.outcome.value)


def indent(text: str, by: str = "    ") -> str:
    return "\n".join(f"{by}{line}" if line else line for line in text.splitlines())


def write_log(chunk: LogChunk) -> None:
    """The job's bytes, untouched. A reader that went away ends the program quietly."""
    sys.stdout.buffer.write(chunk.data)
    sys.stdout.buffer.flush()
