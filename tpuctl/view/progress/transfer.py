"""The rate of a transfer and the time it still takes."""

from __future__ import annotations

from collections import deque

from tpuctl.units import clock_time, decimal_size, transferred

WINDOW = 10.0  # seconds that the rate covers
MIN_SECONDS = 0.5  # of samples before there is a rate


class Rate:
    """Bytes per second over the last seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def feed(self, now: float, done: int) -> None:
        if self._samples and done < self._samples[-1][1]:  # the transfer restarted
            self._samples.clear()
        self._samples.append((now, done))
        while len(self._samples) > 2 and now - self._samples[1][0] > WINDOW:
            self._samples.popleft()

    @property
    def per_second(self) -> float | None:
        """None if there are too few samples."""
        if not self._samples:
            return None
        (began, first), (now, last) = self._samples[0], self._samples[-1]
        return (last - first) / (now - began) if now - began >= MIN_SECONDS else None


def transfer_words(done: int, total: int, rate: float | None) -> list[str]:
    """`12.3 of 27.1 MB`, `3.4 MB/s`, `4 s left`: the first always, the others if known."""
    words = [transferred(done, total)]
    if rate is not None:
        words.append(f"{decimal_size(rate)}/s")
    if rate and done < total:
        words.append(f"{clock_time((total - done) / rate)} left")
    return words
