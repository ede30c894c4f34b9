"""Records a script's training steps: duration, wait for data, loss."""

from __future__ import annotations

import threading
import time
from typing import Any

from .observation_writer import Writer
from .process_exit import ScriptExit


class Steps:
    """Counts and records steps, and ends the script after the last requested one.

    Thread-safe: TensorFlow calls its methods from any thread.
    """

    def __init__(self, writer: Writer, script_exit: ScriptExit, limit: int) -> None:
        self.writer = writer
        self.script_exit = script_exit
        self.limit = limit
        self.count = 0
        self.is_buffering = False  # within Keras' fit, whose callback ends the training
        self.pending: list[dict[str, Any]] = []  # buffered steps, whose loss is not known yet
        self.callbacks: list[Any] = []  # called after each step
        self._lock = threading.RLock()
        self._began: float | None = None
        self._ended: float | None = None  # the end of the previous step in the same call
        self._waiting = 0
        self._wait_began = 0.0
        self._waited: float | None = None

    @property
    def total_count(self) -> int:
        """The number of steps, including buffered ones."""
        return self.count + len(self.pending)

    @property
    def remaining(self) -> int:
        return max(0, self.limit - self.total_count)

    def begin(self) -> None:
        """Begin a step, unless one has begun."""
        with self._lock:
            if self._began is None:
                self._began = time.monotonic()

    def begin_wait(self) -> None:
        """Begin waiting for data; the waits of several replicas may overlap."""
        with self._lock:
            self.begin()
            self._waiting += 1
            if self._waiting == 1:
                self._wait_began = time.monotonic()

    def end_wait(self) -> bool:
        """Whether there was a wait to end."""
        with self._lock:
            if self._waiting == 0:
                return False
            self._waiting -= 1
            if self._waiting == 0:
                self._waited = (self._waited or 0.0) + time.monotonic() - self._wait_began
            return True

    def end(self, loss: float | None = None, examples: int | None = None) -> None:
        """End a step; the time until the next one begins belongs to neither."""
        with self._lock:
            now = time.monotonic()
            began = self._ended if self._began is None else self._began
            began, self._ended = now if began is None else began, now
            seconds, waited = now - began, self._waited
            step = {
                "seconds": round(seconds, 6),
                "waited": None if waited is None else round(min(waited, seconds), 6),
                "loss": loss,
                "examples": examples,
            }
            self._began, self._waited, self._waiting = None, None, 0
            if self.is_buffering:
                self.pending.append(step)
                return
            self._write(step)
        if self.count >= self.limit:
            self.script_exit.request_exit()

    def add(self, seconds: float) -> None:
        """Record a step that was not recognized as one when it ran."""
        self._write({"seconds": round(seconds, 6), "waited": None, "loss": None, "examples": None})

    def discard(self) -> None:
        """Discard a step that was begun: it was none, or the call ended."""
        with self._lock:
            self._began = self._ended = self._waited = None
            self._waiting = 0

    def flush(self, loss: float | None) -> None:
        """Write the buffered steps with their mean loss."""
        with self._lock:
            if not self.pending:
                self.end()
            for step in self.pending:
                self._write({**step, "loss": loss})
            self.pending.clear()

    def _write(self, step: dict[str, Any]) -> None:
        self.count += 1
        self.writer.write("step", number=self.count, **step)
        for function in self.callbacks:
            self.writer.attempt("after a step", function)
