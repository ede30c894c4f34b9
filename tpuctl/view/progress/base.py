"""The interface of all views, and shared wording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from tpuctl.errors import Diagnostic
from tpuctl.model.events import Event, Outcome, PortForwarded, StepFinished
from tpuctl.model.workers.worker_numbering import WorkerNumbering

DUMB_TERMINALS = ("dumb", "unknown")  # values of TERM without cursor movement
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
    "run": "ran",
    "start": "started",
    "store": "stored",
    "update": "updated",
    "upload": "uploaded",
}


def hints_once(diagnostics: Sequence[Diagnostic]) -> list[Diagnostic]:
    """The diagnostics without the hints that the next one repeats."""
    following = [*(diagnostic.hint for diagnostic in diagnostics[1:]), ""]
    return [
        replace(diagnostic, hint="") if hint.startswith(diagnostic.hint) else diagnostic
        for diagnostic, hint in zip(diagnostics, following, strict=True)
    ]


class View(Protocol):
    """Shows events on stderr; log bytes go to stdout unchanged."""

    def on(self, event: Event) -> None: ...

    def problems(self, diagnostics: Sequence[Diagnostic]) -> None:
        """Show errors."""
        ...

    def name_workers(self, numbering: WorkerNumbering) -> None:
        """From now on, prefix output with the worker."""
        ...

    def expect_log(self) -> None:
        """A job's log is followed from now on; a terminal shows that also before its first line."""
        ...

    def close(self) -> None:
        """Restore the terminal."""
        ...


def outcome_word(event: StepFinished, action: str) -> str:
    """The word for a finished step: "created", "failed"…"""
    if event.outcome is Outcome.DONE:
        return PAST_TENSE.get(action, action or "done")
    return str(event.outcome.value)


def progress_word(action: str) -> str:
    """The word for a running step: "creating", "sending"…"""
    if action in ("run",):
        return "running"
    return f"{action.removesuffix('e')}ing" if action else "in progress"


def port_sentence(event: PortForwarded) -> str:
    """A line with the URL first, so that scripts can parse it."""
    return f"{event.url}  forwards to port {event.port} of worker {event.worker_name}"
