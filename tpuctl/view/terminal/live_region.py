"""What is redrawn in place at the bottom of a terminal, below permanent output."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from rich.console import ConsoleRenderable, RenderableType
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType, Segment, Segments

from tpuctl.view.terminal.safe_console import SafeConsole


class LiveConsole(SafeConsole):
    """A console that never hides the cursor, which a killed program could not show again."""

    def show_cursor(self, show: bool = True) -> bool:
        return False


class LiveRegion(Live):
    """Redraws the last lines of the terminal several times a second, until it is stopped.

    The console prints permanent output above it. Hold `lock` while printing, and while changing
    what `draw` reads: it is called in a thread, with the console's size at that time.
    """

    def __init__(self, console: LiveConsole, draw: Callable[[], RenderableType]) -> None:
        self._draw = draw
        self._frame_widths: list[int] = []  # of the next frame's lines
        self._shown_widths: list[int] = []  # of the lines on the terminal
        super().__init__(
            console=console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )

    @property
    def lock(self) -> threading.RLock:
        """The lock that is held while drawing."""
        return self._lock

    def get_renderable(self) -> RenderableType:
        """A frame that leaves the cursor in column 0, where the echo of ^C breaks no line."""
        lines = self.console.render_lines(self._draw(), pad=False)
        self._frame_widths = [Segment.get_line_length(line) for line in lines]
        segments = [segment for line in lines for segment in (*line, Segment.line())][:-1]
        return Segments([*segments, Control(ControlType.CARRIAGE_RETURN).segment])

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Erase also the rows that lines take more since the terminal was narrowed."""
        columns = max(1, self.console.width)
        extra = [max(0, width - 1) // columns for width in self._shown_widths]
        self._shown_widths = [min(width, columns) for width in self._frame_widths]
        frame = super().process_renderables(renderables)
        if not any(extra):
            return frame
        down = ((ControlType.CURSOR_DOWN, 1),) * extra[-1]  # the cursor is in the last line
        up = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)) * sum(extra)
        return [Control(*down, *up), *frame]

    def refresh(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # no terminal: the next print reports it
            super().refresh()
