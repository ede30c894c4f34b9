"""Handle Ctrl-C and SIGTERM in asyncio code."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

T = TypeVar("T")
DEBOUNCE_SECONDS = 1.0  # signals within this time count as one: `timeout` and shells send two


class SignalReceived(Exception):
    """A signal arrived; the work in progress has been cancelled."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number

    @property
    def exit_code(self) -> int:
        """As in shells: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.number

    @property
    def is_final(self) -> bool:
        """Whether SIGKILL is likely to follow: SIGTERM, or any signal without a terminal.

        CI systems send SIGTERM to cancelled jobs, some of them SIGINT a few seconds earlier.
        """
        is_at_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
        return self.number == signal.SIGTERM or not is_at_terminal


class SignalQueue:
    """Queues SIGINT, and other signals after `listen`, until it is closed.

    with SignalQueue() as signals:
        record = await signals.run(work())
    """

    def __init__(self) -> None:
        self._received: asyncio.Queue[signal.Signals] = asyncio.Queue()
        self._numbers: set[signal.Signals] = set()
        self.listen(signal.SIGINT)

    def listen(self, number: signal.Signals) -> None:
        """Queue this signal too."""
        self._numbers.add(number)
        asyncio.get_running_loop().add_signal_handler(number, self._received.put_nowait, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._numbers:
            asyncio.get_running_loop().remove_signal_handler(number)

    def clear(self) -> None:
        """Discard the queued signals."""
        while not self._received.empty():
            self._received.get_nowait()

    async def wait(self, seconds: float) -> SignalReceived | None:
        """The next signal within `seconds`, otherwise None."""
        try:
            return SignalReceived(await asyncio.wait_for(self._received.get(), seconds))
        except TimeoutError:
            return None

    async def run(
        self,
        work: Coroutine[Any, Any, T],
        *,
        seconds: float | None = None,
        on_signal: Callable[[SignalReceived], None] = lambda interrupted: None,
    ) -> T:
        """Run `work` until a signal arrives.

        On a signal, calls `on_signal` immediately, cancels the work, waits for it to end and
        raises SignalReceived. Raises TimeoutError after `seconds`.
        """
        task = asyncio.ensure_future(work)
        waiter = asyncio.ensure_future(self._received.get())
        try:
            await asyncio.wait({task, waiter}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                if waiter.done():  # at the same time: keep it for the next call
                    self._received.put_nowait(waiter.result())
                return task.result()
            if not waiter.done():
                raise TimeoutError
            pressed = SignalReceived(waiter.result())
            on_signal(pressed)
            raise pressed
        finally:
            waiter.cancel()
            task.cancel()
            await asyncio.gather(task, waiter, return_exceptions=True)


class NoSignals:
    """Like `SignalQueue` but without handlers, for non-interactive use."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def listen(self, number: signal.Signals) -> None:
        pass

    def clear(self) -> None:
        pass

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        return await work


async def until_interrupted(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until it ends or Ctrl-C cancels it; a second Ctrl-C ends the program."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    interrupted_at: float | None = None

    def interrupt() -> None:
        nonlocal interrupted_at
        if interrupted_at is None:
            interrupted_at = loop.time()
            task.cancel()
        elif loop.time() - interrupted_at > DEBOUNCE_SECONDS:
            raise KeyboardInterrupt

    loop.add_signal_handler(signal.SIGINT, interrupt)
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()
