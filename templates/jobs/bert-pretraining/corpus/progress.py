"""Progress of a long stage: a line every few seconds, or one updated in place on a terminal."""

from __future__ import annotations

import sys
import time

__all__ = ["Progress", "duration", "megabytes"]

LINE_SECONDS = 5.0
TERMINAL_SECONDS = 0.5


class Progress:
    """Shows bytes done, total bytes, the average speed, and the remaining time."""

    def __init__(self, label: str, total: int | None, done: int = 0) -> None:
        self.label = label
        self.total = total
        self.initial = done
        self.began = self.reported_at = time.monotonic()
        self.is_terminal = sys.stdout.isatty()

    def show(self, done: int, suffix: str = "") -> None:
        """Show progress, unless it was shown just before."""
        now = time.monotonic()
        if now - self.reported_at < (TERMINAL_SECONDS if self.is_terminal else LINE_SECONDS):
            return
        self.reported_at = now
        line = f"{self.label}: {self.describe(done, now - self.began)}{suffix}"
        if self.is_terminal:
            print(f"\r\x1b[K{line}", end="", flush=True)
        else:
            print(line, flush=True)

    def describe(self, done: int, seconds: float) -> str:
        speed = (done - self.initial) / max(seconds, 1e-9)
        text = f"{megabytes(done)}"
        if self.total:
            text += f" of {megabytes(self.total)} ({100 * done // self.total} %)"
        text += f", {speed / 1e6:,.1f} MB/s"
        if self.total and speed > 0:
            text += f", {duration((self.total - done) / speed)} left"
        return text

    def end(self) -> None:
        """Clear the progress line on a terminal."""
        if self.is_terminal:
            print("\r\x1b[K", end="", flush=True)


def megabytes(size: int) -> str:
    """Format a number of bytes in decimal megabytes, or in kilobytes if it is small."""
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def duration(seconds: float) -> str:
    """Format a duration."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
