"""Transfer rate and remaining time, as text and as a bar."""

from __future__ import annotations

from collections import deque

__all__ = ["Rate", "bar", "clock_time", "size", "transfer_words"]

WINDOW = 10.0  # seconds that the rate covers
MIN_SECONDS = 0.5  # of samples before there is a rate
FULL, EMPTY = "━", "─"
PLAIN_FULL, PLAIN_EMPTY = "#", "-"


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
    words = [f"{size(done, like=total).split()[0]} of {size(total)}"]
    if rate is not None:
        words.append(f"{size(rate)}/s")
    if rate and done < total:
        words.append(f"{clock_time((total - done) / rate)} left")
    return words


def bar(fraction: float, width: int, *, plain: bool = False) -> tuple[str, str]:
    """The filled part of a bar, and the rest."""
    full, empty = (PLAIN_FULL, PLAIN_EMPTY) if plain else (FULL, EMPTY)
    filled = round(width * min(1.0, max(0.0, fraction)))
    return full * filled, empty * (width - filled)


def clock_time(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3:05`, `1:02:03`: short, with a stable width."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02}"
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def size(count: float, like: float | None = None) -> str:
    """`4.9 kB`, `27.1 MB`, `3.2 GB`; in the unit of `like`."""
    largest = count if like is None else like
    for power, least, unit in ((9, 1e9, "GB"), (6, 1e5, "MB")):
        if largest >= least:
            return f"{count / 10**power:,.1f} {unit}"
    return f"{count / 1e3:,.1f} kB"
