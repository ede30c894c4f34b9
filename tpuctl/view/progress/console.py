"""The view on a terminal: a live progress tree below permanent lines."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from tpuctl.errors import Diagnostic
from tpuctl.model.events import (
    CommandOutput,
    Event,
    JobEnded,
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
from tpuctl.view.progress.base import hints_once, port_sentence
from tpuctl.view.progress.output import Output
from tpuctl.view.progress.progress_state import ProgressState
from tpuctl.view.progress.progress_tree import ASCII_MARKS, ProgressTree
from tpuctl.view.progress.status_line import JobActivity, StatusLine
from tpuctl.view.terminal.live_region import LiveConsole, LiveRegion
from tpuctl.view.terminal.text_wrapping import terminal_width, wrap, wrap_lines

LOG = "job/log"  # the phase of a run in which the job's log is shown
# Readable on dark and light backgrounds; the words carry the same meaning.
ERROR, WARNING = "bold red", "bold magenta"
INDENT = "  "  # of what follows the first line of a diagnostic


class Console:
    """Shows progress on stderr; while a job's log streams to the same terminal, in one line."""

    def __init__(self, *, no_color: bool = False) -> None:
        # None: rich checks NO_COLOR.
        self.rich = LiveConsole(
            stderr=True, no_color=no_color or None, highlight=False, emoji=False
        )
        self._state = ProgressState()
        self._tree = ProgressTree(self._state)
        self._region: LiveRegion | None = None
        self._status: StatusLine | None = None  # while a job is followed
        self._activity = JobActivity()  # of a job whose log goes elsewhere
        self._output = Output()
        self._shows_log = sys.stdout.isatty()

    def on(self, event: Event) -> None:
        if isinstance(event, JobEnded):
            self._close_status()
        elif self._status is None:
            self._show(event)
        else:
            with self._status.lock:
                self._status.erase()
                self._show(event)

    def _show(self, event: Event) -> None:
        match event:
            case LogChunk() | CommandOutput():
                self._write(event)
            case PortForwarded():
                self._stop_live()
                print(port_sentence(event), flush=True)
            case PageServed(url):
                self._stop_live()
                print(url, flush=True)
            case Note(text):
                self._print_lines(Text(wrap_lines(text, self._width)))
            case WarningIssued(diagnostic, True):
                self._print_lines(*_diagnostic("error", ERROR, diagnostic, self._width))
            case WarningIssued(diagnostic):
                self._print_lines(*_diagnostic("warning", WARNING, diagnostic, self._width))
            case Planned():
                if self._state.starts_over(event):
                    self._stop_live()
                self._show_step(event)
            case StepFinished(address, Outcome.INTERRUPTED) if address == LOG:
                with self._drawing_lock():
                    self._state.drop(LOG)  # a note says how to reattach
            case StepStarted() | StepProgress() | StepFinished():
                self._show_step(event)

    def problems(self, diagnostics: Sequence[Diagnostic]) -> None:
        self._close_status()
        self._stop_live()
        self._state.clear()
        for diagnostic in hints_once(diagnostics):
            self._print_lines(*_diagnostic("error", ERROR, diagnostic, self._width))

    def name_workers(self, numbering: WorkerNumbering) -> None:
        self._output.name_workers(numbering)

    def expect_log(self) -> None:
        if self._shows_log:
            self._status = self._status or StatusLine(self.rich, self._can_draw_status)

    def close(self) -> None:
        self._close_status()
        self._stop_live()
        self._state.clear()
        self._output.finish()

    @property
    def _width(self) -> int | None:
        return terminal_width(self.rich.file)

    def _show_step(self, event: Event) -> None:
        if not self._state:
            self._state.started = self._state.now()
        with self._drawing_lock():
            self._state.on(event)
        if self._state.is_over:
            self._stop_live()
        elif self._region is None and isinstance(event, StepStarted | StepProgress):
            self._start_line()
            self._region = LiveRegion(self.rich, self._draw)
            self._region.start(refresh=True)

    def _drawing_lock(self) -> AbstractContextManager[object]:
        return nullcontext() if self._region is None else self._region.lock

    def _draw(self) -> RenderableType:
        return _Encodable(self._tree.live(*self.rich.size))

    def _write(self, event: LogChunk | CommandOutput) -> None:
        is_command_output = not self._shows_log and not getattr(event, "is_error", False)
        if self._region is not None and not is_command_output:
            self._stop_live()
            if isinstance(event, LogChunk) and self._state.has(LOG):
                self.rich.rule("log", align="left", style="dim")
        self._output.write(event)
        if isinstance(event, LogChunk):
            self._show_activity(event)
        if is_command_output:
            self._output.is_at_line_start = True  # of this terminal

    def _show_activity(self, chunk: LogChunk) -> None:
        """Show what the job does: below its log, or in its row if the log goes elsewhere."""
        self.expect_log()
        if self._status is not None:
            self._status.feed(chunk)
        elif self._state.has(LOG):
            self._activity.feed(chunk)
            with self._drawing_lock():
                self._state.on(StepProgress(LOG, str(self._activity) or "running"))

    def _can_draw_status(self) -> bool:
        return self._region is None and self._output.is_at_line_start

    def _close_status(self) -> None:
        if self._status is not None:
            self._status.close()
            self._status = None

    def _stop_live(self) -> None:
        """Stop the live region and print ended rows permanently."""
        if self._region is not None:
            self._region.stop()
            self._region = None
        rows = self._state.remove_ended()
        if rows:
            self._start_line()
            self.rich.print(_Encodable(self._tree.ended(rows, self.rich.width)))

    def _print_lines(self, *texts: Text) -> None:
        """Print permanent lines above the live region."""
        if self._state.is_over or self._state.has_failed:
            self._stop_live()
        with self._drawing_lock():
            self._start_line()
            for text in texts:
                self.rich.print(text, soft_wrap=True)

    def _start_line(self) -> None:
        if not self._output.is_at_line_start:
            self.rich.print()
            self._output.is_at_line_start = True


@dataclass(frozen=True)
class _Encodable:
    """What is drawn, in ASCII if the terminal knows no more; rich replaces only lines and bars."""

    renderable: RenderableType

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.renderable, options):
            if options.ascii_only and not segment.control:
                text = segment.text.translate(ASCII_MARKS).encode("ascii", "replace").decode()
                yield segment._replace(text=text)
            else:
                yield segment


def _diagnostic(level: str, style: str, diagnostic: Diagnostic, width: int | None) -> list[Text]:
    label = f"{level}: "
    summary = diagnostic.summary
    if width is not None:
        summary = wrap(summary, width, used=len(label), indent=INDENT)
    head = Text.assemble((label, style), (summary, "bold"))
    if diagnostic.where:
        used = cell_len(head.plain.rpartition("\n")[2]) + len(INDENT)
        has_room = width is None or used + cell_len(diagnostic.where) <= width
        head.append(f"{'' if has_room else chr(10)}{INDENT}{diagnostic.where}")
    texts = filter(None, (diagnostic.detail, diagnostic.hint))
    return [head, *(Text(wrap_lines(text, width, indent=INDENT)) for text in texts)]
