"""Plain lines, for logs, pipes and CI."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from tpuctl.errors import Diagnostic
from tpuctl.model.events import (
    CommandOutput,
    Event,
    LogChunk,
    Note,
    Outcome,
    PageServed,
    Planned,
    PortForwarded,
    StepFinished,
    StepProgress,
    StepStarted,
    WarningIssued,
)
from tpuctl.model.workers.worker_numbering import WorkerNumbering
from tpuctl.units import clock_time
from tpuctl.view.progress.base import hints_once, outcome_word, port_sentence
from tpuctl.view.progress.output import Output
from tpuctl.view.progress.progress_state import UNCHANGED_ACTIONS
from tpuctl.view.progress.transfer import Rate, transfer_words
from tpuctl.view.terminal.text_wrapping import terminal_width, wrap_lines

PROGRESS_INTERVAL = 10.0


class Plain:
    """One line per event; `quiet` shows only errors and the job's log."""

    def __init__(self, *, quiet: bool = False, out: TextIO | None = None) -> None:
        self.quiet = quiet
        self.out = out or sys.stderr
        self._actions: dict[str, str] = {}
        self._rates: dict[str, Rate] = {}
        self._last_progress: dict[str, tuple[str, float]] = {}
        self._output = Output()

    def on(self, event: Event) -> None:
        match event:
            case LogChunk() | CommandOutput():
                self._output.write(event)
            case PortForwarded():
                print(port_sentence(event), flush=True)
            case PageServed(url):
                print(url, flush=True)
            case WarningIssued(diagnostic, True):
                self._diagnostic("error", diagnostic)
            case _ if self.quiet:
                pass
            case WarningIssued(diagnostic):
                self._diagnostic("warning", diagnostic)
            case Note(text):
                self._line(text)
            case Planned():
                self._plan(event)
            case StepStarted(address, action, because):
                self._actions[address] = action
                self._line(f"{action} {address}" + (f": {because}" if because else ""))
            case StepProgress(address, _, fraction):
                self._progress(address, self._words(event), is_steady=fraction is not None)
            case StepFinished():
                self._finished(event)

    def problems(self, diagnostics: Sequence[Diagnostic]) -> None:
        for diagnostic in hints_once(diagnostics):
            self._diagnostic("error", diagnostic)

    def name_workers(self, numbering: WorkerNumbering) -> None:
        self._output.name_workers(numbering)

    def expect_log(self) -> None:
        pass

    def close(self) -> None:
        self._output.finish()
        self.out.flush()

    def _finished(self, event: StepFinished) -> None:
        address, reason = event.address, f": {event.because}" if event.because else ""
        if event.outcome is Outcome.UNCHANGED:
            self._line(f"ok {address}{reason}")
        elif event.outcome is Outcome.SKIPPED:
            self._line(f"skipped {address}{reason} failed")
        else:
            word = outcome_word(event, self._actions.get(address, ""))
            suffix = reason if event.outcome is Outcome.DONE or address.startswith("job/") else ""
            self._line(f"{word} {address} ({clock_time(event.seconds)}){suffix}")

    def _plan(self, event: Planned) -> None:
        """One line for a plan of several steps: the number of steps by action."""
        counts = Counter(
            step.action for step in event.steps if step.action not in UNCHANGED_ACTIONS
        )
        if sum(counts.values()) > 1 and not event.steps[0].address.startswith("job/"):
            stays = sum(step.action in UNCHANGED_ACTIONS for step in event.steps)
            words = [f"{count} to {action}" for action, count in counts.items()]
            self._line(", ".join([*words, *([f"{stays} unchanged"] if stays else [])]))

    def _words(self, event: StepProgress) -> str:
        """What a step waits for; for transfers, the bytes, the rate and the remaining time."""
        if event.done is None or event.total is None:
            return event.text
        rate = self._rates.setdefault(event.address, Rate())
        rate.feed(time.monotonic(), event.done)
        return ", ".join(transfer_words(event.done, event.total, rate.per_second))

    def _progress(self, address: str, text: str, *, is_steady: bool) -> None:
        """One line per state; steady progress is reported at intervals."""
        last_text, at = self._last_progress.get(address, ("", 0.0))
        now = time.monotonic()
        if last_text == text or (last_text and is_steady and now - at < PROGRESS_INTERVAL):
            return
        self._last_progress[address] = text, now
        self._line(f"  {address}: {text}")

    def _diagnostic(self, level: str, diagnostic: Diagnostic) -> None:
        where = f"{diagnostic.where}: " if diagnostic.where else ""
        self._line(f"{level}: {where}{diagnostic.summary}")
        for text in filter(None, (diagnostic.detail, diagnostic.hint)):
            self._line(text, indent="    ")

    def _line(self, text: str, *, indent: str = "") -> None:
        lines = wrap_lines(text, terminal_width(self.out), indent=indent)
        print(lines, file=self.out, flush=True)
