"""Ctrl-C, and SIGTERM, as something that a command waits for and answers."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

__all__ = ["Pressed", "Presses", "Unheard", "until_interrupted"]

T = TypeVar("T")
ONE_PRESS = 1.0  # seconds in which several signals are one: `timeout` and shells send two


class Pressed(Exception):
    """What was being waited for was interrupted, and has been cancelled."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number

    @property
    def exit_code(self) -> int:
        """As shells tell it: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.number

    @property
    def is_final(self) -> bool:
        """Whether nobody sits there who may think again: what sent it is about to kill.

        CI systems send SIGTERM when a job is cancelled, and some SIGINT some seconds before it.
        """
        is_at_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
        return self.number == signal.SIGTERM or not is_at_terminal


class Presses:
    """Hears Ctrl-C, in the order pressed, from when it is made until it is closed.

    with Presses() as presses:
        record = await presses.unless(work())
    """

    def __init__(self) -> None:
        self._heard: asyncio.Queue[signal.Signals] = asyncio.Queue()
        self._numbers: set[signal.Signals] = set()
        self.hear(signal.SIGINT)

    def hear(self, number: signal.Signals) -> None:
        """Hear this signal too."""
        self._numbers.add(number)
        asyncio.get_running_loop().add_signal_handler(number, self._heard.put_nowait, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._numbers:
            asyncio.get_running_loop().remove_signal_handler(number)

    def forget(self) -> None:
        """Take no notice of what was pressed until now."""
        while not self._heard.empty():
            self._heard.get_nowait()

    async def next(self, seconds: float) -> Pressed | None:
        """What is pressed within so many seconds; None for nothing."""
        try:
            return Pressed(await asyncio.wait_for(self._heard.get(), seconds))
        except TimeoutError:
            return None

    async def unless(
        self,
        work: Coroutine[Any, Any, T],
        *,
        seconds: float | None = None,
        say: Callable[[Pressed], None] = lambda pressed: None,
    ) -> T:
        """What `work` answers, unless something is pressed before.

        Then `say` is called at once, the work is cancelled, and Pressed raised when that has ended
        it. TimeoutError after so many seconds.
        """
        working = asyncio.ensure_future(work)
        pressing = asyncio.ensure_future(self._heard.get())
        try:
            await asyncio.wait(
                {working, pressing}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if working.done():
                if pressing.done():  # at the same moment: it is for what comes next
                    self._heard.put_nowait(pressing.result())
                return working.result()
            if not pressing.done():
                raise TimeoutError
            pressed = Pressed(pressing.result())
            say(pressed)
            raise pressed
        finally:
            pressing.cancel()
            working.cancel()
            await asyncio.gather(working, pressing, return_exceptions=True)


class Unheard:
    """As `Presses`, where nobody sits: what interrupts the program interrupts the work."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def hear(self, number: signal.Signals) -> None:
        pass

    def forget(self) -> None:
        pass

    async def unless(self, work: Coroutine[Any, Any, T]) -> T:
        return await work


async def until_interrupted(work: Coroutine[Any, Any, None]) -> None:
    """Run it until it ends or Ctrl-C cancels it; a second one ends the program at once."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    pressed: float | None = None

    def interrupt() -> None:
        nonlocal pressed
        if pressed is None:
            pressed = loop.time()
            task.cancel()
        elif loop.time() - pressed > ONE_PRESS:
            raise KeyboardInterrupt

    loop.add_signal_handler(signal.SIGINT, interrupt)
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()
