"""Plain lines, for logs, pipes and CI."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TextIO

from tpuctl.errors import Diagnostic
from tpuctl.model.events import (
    CommandOutput,
    Event,
    LogChunk,
    Note,
    Outcome,
    PortForwarded,
    StepFinished,
    StepProgress,
    StepStarted,
    Warned,
)
from tpuctl.view.base import ended, indent, port_sentence
from tpuctl.view.output import Output

__all__ = ["Plain"]

STEADY_SECONDS = 10.0


class Plain:
    """One line for each thing that happens; `quiet` leaves only problems and the job's log."""

    def __init__(self, *, quiet: bool = False, out: TextIO | None = None) -> None:
        self.quiet = quiet
        self.out = out or sys.stderr
        self._actions: dict[str, str] = {}
        self._told: dict[str, tuple[str, float]] = {}
        self._output = Output()

    def on(self, event: Event) -> None:
        match event:
            case LogChunk() | CommandOutput():
                self._output.write(event)
            case PortForwarded():
                print(port_sentence(event), flush=True)
            case Warned(diagnostic, is_error):
                self._diagnostic("error" if is_error else "warning", diagnostic)
            case _ if self.quiet:
                pass
            case Note(text):
                self._line(text)
            case StepStarted(address, action, because):
                self._actions[address] = action
                self._line(f"{action} {address}" + (f": {because}" if because else ""))
            case StepProgress(address, text, fraction):
                self._progress(address, text, is_steady=fraction is not None)
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

    def name_workers(self, workers: Sequence[int]) -> None:
        self._output.name_workers(workers)

    def close(self) -> None:
        self._output.finish()
        self.out.flush()

    def _progress(self, address: str, text: str, *, is_steady: bool) -> None:
        """A line for each state; of what grows steadily, one now and then."""
        told, at = self._told.get(address, ("", 0.0))
        now = time.monotonic()
        if told == text or (told and is_steady and now - at < STEADY_SECONDS):
            return
        self._told[address] = text, now
        self._line(f"  {address}: {text}")

    def _diagnostic(self, level: str, one: Diagnostic) -> None:
        where = f"{one.where}: " if one.where else ""
        self._line(f"{level}: {where}{one.summary}")
        for text in (one.detail, one.hint):
            if text:
                self._line(indent(text))

    def _line(self, text: str) -> None:
        print(text, file=self.out, flush=True)
