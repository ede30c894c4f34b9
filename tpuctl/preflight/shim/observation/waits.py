"""Records where the script waits, for another process that does not come."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .context import Rehearsal

TICK_SECONDS = 1.0
WAIT_SECONDS = 15.0  # at one instruction
MAX_BUSY_SHARE = 0.2  # of a core, by all threads


class Waits:
    """Looks at the main thread, which may wait in a call that handles no signals."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal
        self.main = threading.main_thread().ident

    def install(self) -> None:
        threading.Thread(target=self._watch, daemon=True, name="tpuctl-waits").start()

    def _watch(self) -> None:
        last: Any = None
        since, busy, is_written = time.monotonic(), time.process_time(), False
        while not self.rehearsal.script_exit.is_requested:
            frame = sys._current_frames().get(self.main or 0)
            position = None if frame is None else (id(frame), frame.f_lasti)
            if position != last:
                last, is_written = position, False
                since, busy = time.monotonic(), time.process_time()
            elif time.process_time() - busy > MAX_BUSY_SHARE * (time.monotonic() - since):
                since, busy = time.monotonic(), time.process_time()  # it compiles, say
            elif not is_written and time.monotonic() - since > WAIT_SECONDS:
                where = self.rehearsal.user_lines.of_frame(frame)
                self.rehearsal.writer.write("waiting", where=where)
                is_written = True
            del frame  # or the script's values would live longer
            time.sleep(TICK_SECONDS)
