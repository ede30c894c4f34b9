"""Clocks of a worker: a monotonic one for limits, and the wall clock for display.

Like the programs that import it, this file is sent to workers as it is: standard library only,
Python 3.8 and later.
"""

from __future__ import annotations

import datetime
import time
from typing import Any

__all__ = ["Stopwatch", "boot_id", "now", "parse", "uptime"]


def now() -> str:
    """The time by the machine's clock, which may be set at any time: only for display."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat()


def parse(moment: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(moment)


def uptime() -> float:
    """Seconds on a monotonic clock that includes the time that the machine was suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def boot_id() -> str:
    """Identifies the machine's boot, at which `uptime` started."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


class Stopwatch:
    """How long something has lasted that began at `started`, over all its supervisors.

    `state` is what a later one goes on from. Only where the machine was started again in between
    does its clock count, for nothing else can tell.
    """

    def __init__(self, started: str, state: dict[str, Any] | None = None) -> None:
        self.started = parse(started)
        here = boot_id()
        if state is None or state["boot_id"] != here:
            passed = 0.0 if state is None else (parse(now()) - self.started).total_seconds()
            state = {"boot_id": here, "start_uptime": uptime() - max(0.0, passed)}
        self.state = state

    def seconds(self) -> float:
        return float(uptime() - self.state["start_uptime"])

    def ended(self, moment: str) -> str:
        """The moment of an end, which no clock that was put back lets come before the start."""
        if parse(moment) >= self.started:
            return moment
        return (self.started + datetime.timedelta(seconds=self.seconds())).isoformat()
