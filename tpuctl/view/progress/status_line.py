"""What a followed job does and for how long, in one line below its log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

from tpuctl.model.logs.log_metrics import MetricReader
from tpuctl.model.logs.progress import Progress
from tpuctl.model.text.terminal_text import without_control_characters
from tpuctl.units import clock_time
from tpuctl.view.progress.job_progress import progress_words

if TYPE_CHECKING:
    from tpuctl.model.events import LogChunk

TICK_SECONDS = 0.25
PAUSE_SECONDS = 0.4  # without output, after which the line is shown
FAST_SECONDS = 0.2  # between chunks of a log that is too fast for a line below it
QUIET_SECONDS = 2.0  # without output, after which that is said
MAX_BYTES = 200  # of a line of tpuctl's own
PREFIX = b"tpuctl: "


class JobActivity:
    """What the log of a job says that it is doing."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._attempt = 0
        self._worker: int | None = None  # the first whose log is shown
        self._begin_attempt(1, is_whole=False)

    def _begin_attempt(self, attempt: int, *, is_whole: bool) -> None:
        self._attempt = attempt
        self._last_output = self._now()
        self._reader = MetricReader(is_whole=is_whole)
        self._progress = Progress()
        self._rest = b""  # of an incomplete line
        self._own = b""  # the last line, if it is tpuctl's

    def feed(self, chunk: LogChunk) -> None:
        if self._worker is None or chunk.attempt != self._attempt:
            self._worker = chunk.worker
            self._begin_attempt(chunk.attempt, is_whole=chunk.offset == 0)
        self._last_output = self._now()
        if chunk.worker == self._worker:
            self._progress = self._progress.after(self._reader.feed(chunk.data))
            *lines, self._rest = (self._rest + chunk.data).rsplit(b"\n", 2)
            self._rest = self._rest[:MAX_BYTES]
            if lines:
                is_own = lines[-1].startswith(PREFIX)
                self._own = lines[-1][len(PREFIX) :][:MAX_BYTES] if is_own else b""

    @property
    def quiet_seconds(self) -> float:
        """How long there was no output."""
        return self._now() - self._last_output

    def __str__(self) -> str:
        """`installing requirements.txt, no new output for 34 s`, `step 40, loss 1.25`

        How long is what was seen here: the job may have been as quiet before it was followed.
        """
        if self._worker is None:
            return f"waiting for the log {clock_time(self.quiet_seconds)}"
        words = progress_words(self._progress)
        if self._own:
            words = [without_control_characters(self._own.decode("utf-8", "replace")).strip()]
        if self.quiet_seconds >= QUIET_SECONDS:
            words.append(f"no new output for {clock_time(self.quiet_seconds)}")
        return ", ".join(words)


class StatusLine:
    """Draws the activity in the pauses of a log, where `can_draw`; erase it before other output.

    Hold `lock` while writing to the terminal.
    """

    def __init__(self, console: Console, can_draw: Callable[[], bool]) -> None:
        self.activity = JobActivity()
        self.lock = threading.RLock()
        self._console = console
        self._can_draw = can_draw
        self._drawn_width = 0  # columns of the line on the terminal
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def feed(self, chunk: LogChunk) -> None:
        """Take into account what was just written, and draw unless that is frequent."""
        with self.lock:
            is_slow = self.activity.quiet_seconds >= FAST_SECONDS
            self.activity.feed(chunk)
            if is_slow and self._can_draw():
                self._draw()

    def erase(self) -> None:
        with self.lock:
            if self._drawn_width:
                # A line that is wrapped since the terminal was narrowed takes more rows.
                extra = (self._drawn_width - 1) // max(1, self._console.width)
                up = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)) * extra
                down = ((ControlType.CURSOR_DOWN, 1),) * extra
                erase = ((ControlType.ERASE_IN_LINE, 2), ControlType.CARRIAGE_RETURN)
                self._console.control(Control(*down, *up, *erase))
                self._drawn_width = 0

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self.erase()

    def _run(self) -> None:
        while not self._ended.wait(TICK_SECONDS):
            with self.lock:
                if self.activity.quiet_seconds >= PAUSE_SECONDS and self._can_draw():
                    self._draw()

    def _draw(self) -> None:
        words = str(self.activity)
        if self._console.options.ascii_only:
            words = words.encode("ascii", "replace").decode()
        text = Text(words, "dim", no_wrap=True)
        text.truncate(max(1, self._console.width - 1), overflow="crop")
        try:
            self.erase()
            if text:
                self._console.print(text, end="")
                self._console.control(Control(ControlType.CARRIAGE_RETURN))  # for the echo of ^C
        except (OSError, ValueError):  # no terminal: the next output reports it
            self._ended.set()
        self._drawn_width = text.cell_len
