"""Runs a program on a machine whose clock can be changed: `set_clock.py OFFSET LOOKS FILE …`.

OFFSET is a file with the current error of the clock in seconds. A byte is appended to LOOKS each
time the program reads the monotonic clock, so that others can wait until it has checked again.
Setting the real clock would require root and a dedicated computer.
"""

from __future__ import annotations

import datetime
import runpy
import sys
import time
from pathlib import Path

offset_file, looks_file, *sys.argv = sys.argv[1:]
real_time, real_uptime = time.time, time.clock_gettime


def offset() -> float:
    try:
        return float(Path(offset_file).read_text("ascii") or 0)
    except FileNotFoundError:
        return 0.0


class ShiftedDatetime(datetime.datetime):
    """Timestamps of the shifted clock."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> ShiftedDatetime:
        return super().now(tz) + datetime.timedelta(seconds=offset())


def uptime(clock: int) -> float:
    with Path(looks_file).open("ab") as file:
        file.write(b".")
    return real_uptime(clock)


time.time = lambda: real_time() + offset()
time.clock_gettime = uptime
datetime.datetime = ShiftedDatetime  # type: ignore[misc]
runpy.run_path(sys.argv[0], run_name="__main__")
