"""A terminal: finished steps stay as lines, running ones move below them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console as RichConsole
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

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

__all__ = ["Console"]

MARKS = {
    Outcome.DONE: ("✓", "green"),
    Outcome.UNCHANGED: ("·", "dim"),
    Outcome.FAILED: ("✗", "bold red"),
    Outcome.SKIPPED: ("-", "dim"),
    Outcome.INTERRUPTED: ("-", "yellow"),
}
WIDTH = 32  # of the column with addresses


class Console:
    """Rich on stderr; while a job's log streams to stdout nothing moves."""

    def __init__(self, *, no_color: bool = False) -> None:
        # None keeps rich's own look at NO_COLOR.
        self.rich = RichConsole(stderr=True, no_color=no_color or None, highlight=False)
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._actions: dict[str, str] = {}
        self._output = Output()

    def on(self, event: Event) -> None:
        match event:
            case LogChunk() | CommandOutput():
                self._still()
                self._output.write(event)
            case PortForwarded():
                self._still()
                print(port_sentence(event), flush=True)
            case Note(text):
                self._print(Text(text))
            case Warned(diagnostic, True):
                self._diagnostic("error", "bold red", diagnostic)
            case Warned(diagnostic):
                self._diagnostic("warning", "yellow", diagnostic)
            case StepStarted(address, action, _):
                self._actions[address] = action
                self._tasks[address] = self._moving().add_task(address, total=None, state=action)
            case StepProgress(address, text, fraction):
                if address in self._tasks:
                    shown = text if fraction is None else f"{text} {fraction:.0%}"
                    self._moving().update(self._tasks[address], state=escape(shown))
            case StepFinished():
                self._finished(event)

    def problems(self, diagnostics: Sequence[Diagnostic]) -> None:
        self._still()
        for one in diagnostics:
            self._diagnostic("error", "bold red", one)

    def name_workers(self, workers: Sequence[int]) -> None:
        self._output.name_workers(workers)

    def close(self) -> None:
        self._still()
        self._output.finish()

    def _finished(self, event: StepFinished) -> None:
        mark, style = MARKS[event.outcome]
        line = Text.assemble((mark, style), " ", f"{event.address:<{WIDTH}} ")
        if event.outcome is Outcome.UNCHANGED:
            line.append(event.because, style="dim")
        elif event.outcome is Outcome.SKIPPED:
            line.append(f"skipped: {event.because} failed", style="dim")
        else:
            line.append(ended(event, self._actions.get(event.address, "")), style=style)
            line.append(f"  {event.seconds:.1f} s", style="dim")
            if event.outcome is Outcome.DONE and event.because:
                line.append(f"  {event.because}", style="dim")
        if event.address in self._tasks:
            self._moving().remove_task(self._tasks.pop(event.address))
        self._print(line, cut=True)
        if not self._tasks:
            self._still()

    def _moving(self) -> Progress:
        """The region of running steps, started when there is one."""
        if self._progress is None:
            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", table_column=Column(width=WIDTH)),
                TextColumn("{task.fields[state]}", table_column=Column(ratio=1, no_wrap=True)),
                TimeElapsedColumn(),
                console=self.rich,
                transient=True,
                expand=True,
            )
            self._progress.start()
        return self._progress

    def _still(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
            self._tasks.clear()

    def _print(self, text: Text, *, cut: bool = False) -> None:
        if not self._output.is_at_line_start:
            self.rich.print()
            self._output.is_at_line_start = True
        if cut:
            self.rich.print(text, no_wrap=True, overflow="ellipsis")
        else:
            self.rich.print(text, soft_wrap=True)

    def _diagnostic(self, level: str, style: str, one: Diagnostic) -> None:
        head = Text.assemble((f"{level}: ", style), (one.summary, "bold"))
        if one.where:
            head.append(f"  {one.where}", style="cyan")
        self._print(head)
        if one.detail:
            self._print(Text(indent(one.detail, "  ")))
        if one.hint:
            self._print(Text(indent(one.hint, "  "), style="green"))
