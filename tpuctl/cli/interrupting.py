"""Commands that go on until Ctrl-C, which is how they are meant to end."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from tpuctl.cli.state import State

__all__ = ["until_interrupted"]

ONE_PRESS = 1.0  # seconds in which several signals are one: `timeout` and shells send two


def until_interrupted(state: State, work: Coroutine[Any, Any, None]) -> None:
    """Run it until it ends or Ctrl-C cancels it; a second one ends the program at once."""
    import asyncio
    import signal

    async def main() -> None:
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

    state.wait_for(main())
