"""Runs blocking calls in daemon threads, without delaying the event loop or the program's exit."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["in_thread"]

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a blocking function in a new thread and await its result.

    The thread is a daemon: unlike a pool's, it never keeps the interpreter alive, so Ctrl-C ends
    the program immediately. If the caller is cancelled, the call continues and its result is
    dropped.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]

    def work() -> None:
        value: T | None = None
        failure: BaseException | None = None
        try:
            value = function(*args, **kwargs)
        except BaseException as error:
            failure = error
        # The loop may have closed meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(deliver, value, failure)

    name = getattr(function, "__name__", "call")
    threading.Thread(target=work, name=f"tpuctl-{name}", daemon=True).start()
    return await future
