"""A step of a command: emits events for its start, progress and end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tpuctl.model.events import Emit, Outcome, StepFinished, StepProgress, StepStarted
from tpuctl.polling import Clock, SystemClock


class Step:
    """A step in progress. `result` is the text that its final event carries."""

    def __init__(self, emit: Emit, address: str, clock: Clock) -> None:
        self.address = address
        self.result = ""
        self._emit = emit
        self._clock = clock
        self._began = clock.now()

    @property
    def seconds(self) -> float:
        """Seconds since the step started."""
        return self._clock.now() - self._began

    def report(self, text: str, fraction: float | None = None) -> None:
        """Report what is being waited for, and the completed fraction (0 to 1) if known."""
        self._emit(StepProgress(self.address, text, fraction))

    def report_bytes(self, done: int, total: int, text: str) -> None:
        """Report `done` of `total` bytes transferred; `text` is the same for people."""
        total = max(total, done, 1)  # a file may have grown since it was measured
        self._emit(StepProgress(self.address, text, done / total, done, total))


@contextmanager
def step(
    emit: Emit, address: str, action: str, because: str = "", clock: Clock | None = None
) -> Iterator[Step]:
    """Emit events for the work within the block. An exception marks the step as failed and
    propagates."""
    started = Step(emit, address, clock or SystemClock())
    emit(StepStarted(address, action, because))
    try:
        yield started
    except BaseException as error:
        outcome = Outcome.FAILED if isinstance(error, Exception) else Outcome.INTERRUPTED
        emit(StepFinished(address, outcome, started.seconds, str(error)))
        raise
    emit(StepFinished(address, Outcome.DONE, started.seconds, started.result))
