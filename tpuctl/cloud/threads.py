"""Blocking calls awaited without holding up the loop, or the end of the program."""

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
    """Call a blocking function in a thread of its own and wait for what it returns or raises.

    The thread is a daemon: unlike a pool's, it never keeps the interpreter alive, so Ctrl-C ends
    the program at once. When the waiter is cancelled the call goes on and its outcome is dropped.
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
        # The loop may have closed meanwhile; nobody is waiting then.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(deliver, value, failure)

    name = getattr(function, "__name__", "call")
    threading.Thread(target=work, name=f"tpuctl-{name}", daemon=True).start()
    return await future
