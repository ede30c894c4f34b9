"""What every view can do, and the words they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tpuctl.errors import Diagnostic
from tpuctl.model.events import Event, Outcome, PortForwarded, StepFinished

__all__ = ["DUMB_TERMINALS", "View", "indent", "outcome_word", "port_sentence", "progress_word"]

DUMB_TERMINALS = ("dumb", "unknown")  # values of TERM: lines can be written, and nothing moved
PAST_TENSE = {
    "check": "checked",
    "compile": "compiled",
    "connect": "connected",
    "copy": "copied",
    "create": "created",
    "delete": "deleted",
    "download": "downloaded",
    "find": "found",
    "follow": "followed",
    "make": "made",
    "run": "ran",
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

    def name_workers(self, workers: Sequence[int]) -> None:
        """From now on say which worker wrote what, where that is not told anyhow."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was found."""
        ...


def outcome_word(event: StepFinished, action: str) -> str:
    """How a finished step is told: "created", "failed"…"""
    if event.outcome is Outcome.DONE:
        return PAST_TENSE.get(action, action or "done")
    return str(event.outcome.value)


def progress_word(action: str) -> str:
    """What a step is said to be at: "creating", "sending"…"""
    if action in ("run",):
        return "running"
    return f"{action.removesuffix('e')}ing" if action else "under way"


def port_sentence(event: PortForwarded) -> str:
    """The address to open, first on its line so that it can be taken from there."""
    return f"{event.url}  is port {event.port} of worker {event.worker}"


def indent(text: str, by: str = "    ") -> str:
    return "\n".join(f"{by}{line}" if line else line for line in text.splitlines())
