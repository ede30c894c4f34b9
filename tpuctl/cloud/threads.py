"""Runs blocking calls in daemon threads, without delaying the event loop or the program's exit."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from tpuctl.model.troubleshooting.command_record import Call, RecordCall

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


def recorded(function: Callable[P, T], subject: str, record: RecordCall | None) -> Callable[P, T]:
    """The function, with each call of it passed to `record`, with its answer or exception."""
    if record is None:
        return function
    # A function within a method is one request of that method's.
    method = getattr(function, "__qualname__", type(function).__name__).partition(".<locals>")[0]

    @wraps(function)
    def call(*args: P.args, **fields: P.kwargs) -> T:
        started = time.monotonic()
        answer: T | None = None
        failure: BaseException | None = None
        try:
            answer = function(*args, **fields)
        except BaseException as error:
            failure = error
            raise
        else:
            return answer
        finally:
            seconds = time.monotonic() - started
            record(Call(subject, method, args, fields, answer, failure, seconds))

    return call
