"""What a check that takes long is doing, on one line of the terminal."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.view.terminal.live_region import LiveRegion

DELAY_SECONDS = 1.0  # before anything is shown


class CheckProgress:
    """The last text of `show`; nothing if stderr is no terminal. `close` erases it."""

    def __init__(self, *, is_silent: bool) -> None:
        self._is_silent = is_silent or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb"
        self._start = time.monotonic()
        self._text = ""
        self._region: LiveRegion | None = None

    def show(self, text: str) -> None:
        self._text = text
        is_early = time.monotonic() - self._start < DELAY_SECONDS
        if self._is_silent or is_early or self._region is not None:
            return
        from rich.text import Text

        from tpuctl.view.terminal.live_region import LiveConsole, LiveRegion

        console = LiveConsole(stderr=True, highlight=False)
        self._region = LiveRegion(console, lambda: Text(self._text))
        self._region.start()

    def close(self) -> None:
        if self._region is not None:
            self._region.stop()
