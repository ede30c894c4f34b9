"""How far a long stage has come: a line every few seconds, or one that changes on a terminal."""

from __future__ import annotations

import sys
import time

__all__ = ["Progress", "duration", "megabytes"]

LINE_SECONDS = 5.0
TERMINAL_SECONDS = 0.5


class Progress:
    """Tells bytes done of all bytes, their speed since the start, and the time that is left."""

    def __init__(self, label: str, total: int | None, done: int = 0) -> None:
        self.label = label
        self.total = total
        self.at_first = done
        self.began = self.told = time.monotonic()
        self.is_terminal = sys.stdout.isatty()

    def show(self, done: int, more: str = "") -> None:
        """Tell that so many bytes are done, unless something was told a moment ago."""
        now = time.monotonic()
        if now - self.told < (TERMINAL_SECONDS if self.is_terminal else LINE_SECONDS):
            return
        self.told = now
        line = f"{self.label}: {self.describe(done, now - self.began)}{more}"
        if self.is_terminal:
            print(f"\r\x1b[K{line}", end="", flush=True)
        else:
            print(line, flush=True)

    def describe(self, done: int, seconds: float) -> str:
        speed = (done - self.at_first) / max(seconds, 1e-9)
        told = f"{megabytes(done)}"
        if self.total:
            told += f" of {megabytes(self.total)} ({100 * done // self.total} %)"
        told += f", {speed / 1e6:,.1f} MB/s"
        if self.total and speed > 0:
            told += f", {duration((self.total - done) / speed)} left"
        return told

    def end(self) -> None:
        """Take the changing line off a terminal."""
        if self.is_terminal:
            print("\r\x1b[K", end="", flush=True)


def megabytes(size: int) -> str:
    """Return a number of bytes for people, in decimal megabytes; a small one in kilobytes."""
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def duration(seconds: float) -> str:
    """Return a time for people."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
