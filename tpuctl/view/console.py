"""A terminal: what is done is a tree that lives below what stays, and stays when it has ended."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from rich.console import Console as RichConsole
from rich.text import Text

from tpuctl.errors import Diagnostic
from tpuctl.model.events import (
    CommandOutput,
    Event,
    LogChunk,
    Note,
    Outcome,
    Planned,
    PortForwarded,
    StepFinished,
    StepProgress,
    StepStarted,
    WarningIssued,
)
from tpuctl.view.base import indent, port_sentence
from tpuctl.view.live_region import Region
from tpuctl.view.output import Output
from tpuctl.view.progress_state import Story
from tpuctl.view.progress_tree import Look, Tree

__all__ = ["Console"]

LOG = "job/log"  # the phase of a run in which the job's log is shown
# Colors that can be read on dark and on light; the words beside them say the same.
ERROR, WARNING = "bold red", "bold magenta"


class Console:
    """On stderr; while a job's log streams to the same terminal nothing moves."""

    def __init__(self, *, no_color: bool = False) -> None:
        # None keeps rich's own look at NO_COLOR.
        self.rich = RichConsole(stderr=True, no_color=no_color or None, highlight=False)
        self._story = Story()
        self._tree = Tree(self._story)
        self._region: Region | None = None
        self._output = Output()
        self._shows_log = sys.stdout.isatty()

    def on(self, event: Event) -> None:
        match event:
            case LogChunk() | CommandOutput():
                self._write(event)
            case PortForwarded():
                self._still()
                print(port_sentence(event), flush=True)
            case Note(text):
                self._say(Text(text))
            case WarningIssued(diagnostic, True):
                self._say(*_diagnostic("error", ERROR, diagnostic))
            case WarningIssued(diagnostic):
                self._say(*_diagnostic("warning", WARNING, diagnostic))
            case Planned():
                if self._story.begins_anew(event):
                    self._still()
                self._tell(event)
            case StepFinished(address, Outcome.INTERRUPTED) if address == LOG:
                self._changing(lambda: self._story.drop(LOG))  # it was told how to come back to it
            case StepStarted() | StepProgress() | StepFinished():
                self._tell(event)

    def problems(self, diagnostics: Sequence[Diagnostic]) -> None:
        self._still()
        self._story.forget()
        for one in diagnostics:
            self._say(*_diagnostic("error", ERROR, one))

    def name_workers(self, workers: Sequence[int]) -> None:
        self._output.name_workers(workers)

    def close(self) -> None:
        self._still()
        self._story.forget()
        self._output.finish()

    def _tell(self, event: Event) -> None:
        if not self._story:
            self._story.began = self._story.now()
        self._changing(lambda: self._story.on(event))
        if self._story.is_over:
            self._still()
        elif self._region is None and isinstance(event, StepStarted | StepProgress):
            self._fresh_line()
            self._region = Region(self.rich, self._draw)

    def _changing(self, change: Callable[[], None]) -> None:
        """Change the story while nobody draws it."""
        if self._region is None:
            change()
        else:
            with self._region.lock:
                change()

    def _draw(self, width: int, height: int) -> list[Text]:
        return self._tree.live(self._look(width, height))

    def _look(self, width: int, height: int) -> Look:
        return Look(width, height, plain="utf" not in self.rich.encoding.lower())

    def _write(self, event: LogChunk | CommandOutput) -> None:
        is_beside = not self._shows_log and not getattr(event, "is_error", False)
        if self._region is not None and not is_beside:
            self._still()
            if isinstance(event, LogChunk) and self._story.has(LOG):
                self.rich.rule("log", align="left", style="dim", characters=self._line)
        self._output.write(event)
        if is_beside:
            self._output.is_at_line_start = True  # of this terminal

    @property
    def _line(self) -> str:
        return "-" if "utf" not in self.rich.encoding.lower() else "─"

    def _still(self) -> None:
        """Let what has ended stay as lines, and nothing move."""
        if self._region is not None:
            self._region.stop()
            self._region = None
        rows = self._story.end()
        if rows:
            self._fresh_line()
            for line in self._tree.record(rows, self._look(*self.rich.size)):
                self.rich.print(line, soft_wrap=True)

    def _say(self, *texts: Text) -> None:
        """Lines that stay, above what moves."""

        def write() -> None:
            self._fresh_line()
            for text in texts:
                self.rich.print(text, soft_wrap=True)

        if self._story.is_over or self._story.has_failed:
            self._still()
        if self._region is None:
            write()
        else:
            self._region.above(write)

    def _fresh_line(self) -> None:
        if not self._output.is_at_line_start:
            self.rich.print()
            self._output.is_at_line_start = True


def _diagnostic(level: str, style: str, one: Diagnostic) -> list[Text]:
    head = Text.assemble((f"{level}: ", style), (one.summary, "bold"))
    if one.where:
        head.append(f"  {one.where}")
    lines = [head]
    if one.detail:
        lines.append(Text(indent(one.detail, "  ")))
    if one.hint:
        lines.append(Text(indent(one.hint, "  ")))
    return lines
