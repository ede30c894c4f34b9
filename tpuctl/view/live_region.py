"""Lines at the bottom of a terminal that are redrawn in place, below permanent output."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

__all__ = ["LiveRegion"]

REFRESH_SECONDS = 0.125  # seconds between frames
Draw = Callable[[int, int], Sequence[Text]]  # renders lines for a number of columns and rows


class LiveRegion:
    """The last lines of the terminal, redrawn several times a second until stopped.

    The cursor is never hidden and no mode is changed: however the program ends, the terminal stays
    usable. Each frame is one write, line over line, so it does not flicker. After the terminal was
    narrowed, wrapped lines are counted, so that no old text stays.
    """

    def __init__(self, console: Console, draw: Draw, *, pause: float = REFRESH_SECONDS) -> None:
        self._console = console
        self._draw = draw
        self._pause = pause
        self.lock = threading.RLock()
        self._drawn: list[int] = []  # the width of each drawn line
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def print_above(self, write: Callable[[], None]) -> None:
        """Print permanent output above the region."""
        with self.lock:
            self._erase()
            write()
            self._paint()

    def draw_now(self) -> None:
        """Draw a frame immediately."""
        with self.lock:
            if not self._stopping.is_set():
                self._paint()

    def stop(self) -> None:
        """Erase the region."""
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
            # The terminal echoes typed keys such as ^C at the cursor, where they break no line.
            self._write(f"{self._to_top(width)}{text}\x1b[K\x1b[J\r")
        else:
            self._erase()
        self._drawn = [cell_len(line.plain) for line in lines]

    def _erase(self) -> None:
        if self._drawn:
            self._write(f"{self._to_top(self._console.size.width)}\x1b[J")
        self._drawn = []

    def _to_top(self, width: int) -> str:
        """The escape codes that move the cursor from the last line to the start of the first."""
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
        except (OSError, ValueError):  # the terminal is gone; the next print reports it
            self._stopping.set()
