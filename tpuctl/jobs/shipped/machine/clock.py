"""Clocks of a worker: a monotonic one for limits, and the wall clock for display.

Like the programs that import it, this file is sent to workers as it is: standard library only,
Python 3.8 and later.
"""

from __future__ import annotations

import datetime
import time

TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from typing import Any


def now() -> str:
    """The time by the machine's clock, which may be set at any time: only for display."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat()


def parse(timestamp: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(timestamp)


def uptime() -> float:
    """Seconds on a monotonic clock that includes the time that the machine was suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def boot_id() -> str:
    """The ID of the machine's current boot, at which `uptime` started."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


class Stopwatch:
    """Measures the time since `started`, across restarts of the supervisor.

    `state` lets the next supervisor continue. The wall clock is used only if the machine was
    rebooted in between, which resets the monotonic one.
    """

    def __init__(self, started: str, state: dict[str, Any] | None = None) -> None:
        self.started = parse(started)
        current_boot = boot_id()
        if state is None or state["boot_id"] != current_boot:
            elapsed = 0.0 if state is None else (parse(now()) - self.started).total_seconds()
            state = {"boot_id": current_boot, "start_uptime": uptime() - max(0.0, elapsed)}
        self.state = state

    def seconds(self) -> float:
        return float(uptime() - self.state["start_uptime"])

    def end_time(self, timestamp: str) -> str:
        """The timestamp of the end, never before the start even if the clock was set back."""
        if parse(timestamp) >= self.started:
            return timestamp
        return (self.started + datetime.timedelta(seconds=self.seconds())).isoformat()
