"""When a run is asked to end: it goes on to a place where it can be taken up again."""

from __future__ import annotations

import signal
import sys
from typing import Any

__all__ = ["Stop"]


class Stop:
    """Remembers that a signal asked the run to end; a second one ends it at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.deferred = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._asked)

    def _asked(self, number: int, frame: Any) -> None:
        if self.signal is not None or not self.deferred:
            sys.exit(128 + number)
        # Nothing is printed here: the signal may have come in the middle of a print.
        self.signal = number
