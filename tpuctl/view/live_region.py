"""Lines of a terminal that are drawn anew in their place, below everything that stays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

__all__ = ["LiveRegion"]

REFRESH_SECONDS = 0.125  # seconds between two pictures
Draw = Callable[[int, int], Sequence[Text]]  # for so many columns and rows


class LiveRegion:
    """The last lines of the terminal, drawn several times a second until it is stopped.

    The cursor is never hidden and no mode is changed: whatever ends the program, the terminal is
    as it was. A picture is written at once, line over line, and so does not flicker. When the
    terminal became narrower its own line breaks are counted, so that nothing old stays.
    """

    def __init__(self, console: Console, draw: Draw, *, pause: float = REFRESH_SECONDS) -> None:
        self._console = console
        self._draw = draw
        self._pause = pause
        self.lock = threading.RLock()
        self._drawn: list[int] = []  # the columns of each line that stands there
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def print_above(self, write: Callable[[], None]) -> None:
        """Write something that stays, above the region."""
        with self.lock:
            self._erase()
            write()
            self._paint()

    def draw_now(self) -> None:
        """Draw it without waiting for its next turn."""
        with self.lock:
            if not self._stopping.is_set():
                self._paint()

    def stop(self) -> None:
        """Take the region away."""
        self._stopping.set()
        with self.lock:
            self._erase()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self.lock:
                if self._stopping.is_set():
                    return
                self._paint()
            self._stopping.wait(self._pause)

    def _paint(self) -> None:
        width, height = self._console.size
        lines = self._draw(width, height)
        if lines:
            text = "\x1b[K\n".join(self._rendered(line) for line in lines)
            # What is typed meanwhile, as ^C, is shown at the cursor: there it breaks no line.
            self._write(f"{self._to_top(width)}{text}\x1b[K\x1b[J\r")
        else:
            self._erase()
        self._drawn = [cell_len(line.plain) for line in lines]

    def _erase(self) -> None:
        if self._drawn:
            self._write(f"{self._to_top(self._console.size.width)}\x1b[J")
        self._drawn = []

    def _to_top(self, width: int) -> str:
        """What moves the cursor from the begin of the last line to that of the first."""
        if not self._drawn:
            return ""
        rows = sum(max(1, -(-columns // max(1, width))) for columns in self._drawn[:-1])
        return f"\r\x1b[{rows}A" if rows else "\r"

    def _rendered(self, line: Text) -> str:
        with self._console.capture() as captured:
            self._console.print(line, end="", soft_wrap=True)
        return captured.get()

    def _write(self, text: str) -> None:
        try:
            self._console.file.write(text)
            self._console.file.flush()
        except (OSError, ValueError):  # the terminal went away: who prints next will tell
            self._stopping.set()
