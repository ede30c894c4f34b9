"""One step of the story: its begin, its progress and its end, told as events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tpuctl.model.events import Emit, Outcome, StepFinished, StepProgress, StepStarted
from tpuctl.polling import Clock, SystemClock

__all__ = ["Step", "step"]


class Step:
    """A step under way. `result` is what is to be said of it when it is done."""

    def __init__(self, emit: Emit, address: str, clock: Clock) -> None:
        self.address = address
        self.result = ""
        self._emit = emit
        self._clock = clock
        self._began = clock.now()

    @property
    def seconds(self) -> float:
        """How long it has taken until now."""
        return self._clock.now() - self._began

    def report(self, text: str, fraction: float | None = None) -> None:
        """Tell what is waited for now, and how far it is (0 to 1) where that is known."""
        self._emit(StepProgress(self.address, text, fraction))

    def report_bytes(self, done: int, total: int, text: str) -> None:
        """Tell that so many bytes of all have arrived; `text` says the same in words."""
        total = max(total, done, 1)  # what is sent may have grown since it was measured
        self._emit(StepProgress(self.address, text, done / total, done, total))


@contextmanager
def step(
    emit: Emit, address: str, action: str, because: str = "", clock: Clock | None = None
) -> Iterator[Step]:
    """Tell of what is done within. It has failed when an error is raised, which goes on."""
    started = Step(emit, address, clock or SystemClock())
    emit(StepStarted(address, action, because))
    try:
        yield started
    except BaseException as error:
        outcome = Outcome.FAILED if isinstance(error, Exception) else Outcome.INTERRUPTED
        emit(StepFinished(address, outcome, started.seconds, str(error)))
        raise
    emit(StepFinished(address, Outcome.DONE, started.seconds, started.result))
