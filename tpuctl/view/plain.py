"""Plain lines, for logs, pipes and CI."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from tpuctl.errors import Diagnostic
from tpuctl.model.events import (
    Event,
    LogChunk,
    Note,
    Outcome,
    StepFinished,
    StepProgress,
    StepStarted,
    Warned,
)
from tpuctl.view.base import ended, indent, write_log

__all__ = ["Plain"]


class Plain:
    """One line for each thing that happens; `quiet` leaves only problems and the job's log."""

    def __init__(self, *, quiet: bool = False, out: TextIO | None = None) -> None:
        self.quiet = quiet
        self.out = out or sys.stderr
        self._actions: dict[str, str] = {}
        self._told: dict[str, str] = {}

    def on(self, event: Event) -> None:
        match event:
            case LogChunk():
                write_log(event)
            case Warned(diagnostic, is_error):
                self._diagnostic("error" if is_error else "warning", diagnostic)
            case _ if self.quiet:
                pass
            case Note(text):
                self._line(text)
            case StepStarted(address, action, because):
                self._actions[address] = action
                self._line(f"{action} {address}" + (f": {because}" if because else ""))
            case StepProgress(address, text):
                if self._told.get(address) != text:
                    self._told[address] = text
                    self._line(f"  {address}: {text}")
            case StepFinished(address, outcome, seconds, because):
                word = ended(event, self._actions.get(address, ""))
                if outcome is Outcome.UNCHANGED:
                    self._line(f"ok {address}" + (f": {because}" if because else ""))
                elif outcome is Outcome.DONE:
                    told = f": {because}" if because else ""
                    self._line(f"{word} {address} ({seconds:.1f} s){told}")
                elif outcome is Outcome.SKIPPED:
                    self._line(f"skipped {address}: {because} failed")
                else:
                    self._line(f"{word} {address} ({seconds:.1f} s)")

    def problems(self, diagnostics: Sequence[Diagnostic]) -> None:
        for one in diagnostics:
            self._diagnostic("error", one)

    def close(self) -> None:
        self.out.flush()

    def _diagnostic(self, level: str, one: Diagnostic) -> None:
        where = f"{one.where}: " if one.where else ""
        self._line(f"{level}: {where}{one.summary}")
        for text in (one.detail, one.hint):
            if text:
                self._line(indent(text))

    def _line(self, text: str) -> None:
        print(text, file=self.out, flush=True)
