"""The API without asyncio, for scripts and for notebooks, which already run an event loop."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar

from tpuctl.api.interface import Tpuctl
from tpuctl.model.events import Emit, LogChunk, Note, WarningIssued

if TYPE_CHECKING:
    from tpuctl.model.events import Event

__all__ = ["BlockingTpuctl", "print_log"]

P = ParamSpec("P")
T = TypeVar("T")


def print_log(event: Event) -> None:
    """Print a job's log to stdout, and notes and warnings to stderr."""
    if isinstance(event, LogChunk):
        print(event.data.decode(errors="replace"), end="", flush=True)
    elif isinstance(event, Note):
        print(event.text, file=sys.stderr)
    elif isinstance(event, WarningIssued):
        print(f"{event.diagnostic.summary}: {event.diagnostic.detail}", file=sys.stderr)


async def _cancel_others() -> None:
    """End what an interrupted call has left, such as its connections."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _blocking(
    method: Callable[Concatenate[Tpuctl, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingTpuctl, P], T]:
    """The method of the same name that returns when the coroutine has ended."""

    @functools.wraps(method)
    def call(self: BlockingTpuctl, /, *arguments: P.args, **keywords: P.kwargs) -> T:
        return self.wait_for(method(self.api, *arguments, **keywords))

    return call


class BlockingTpuctl:
    """One stack, like `Tpuctl`, with blocking methods.

    with BlockingTpuctl("tpuctl.yaml", cloud="local") as stack:
        stack.up()
        code = stack.run("train.py")
        stack.down()

    Calls may come from any thread, one at a time. Ctrl-C ends the call, not the job.
    """

    def __init__(
        self,
        stack_file: str | Path = "tpuctl.yaml",
        *,
        name: str = "",
        project: str = "",
        cloud: Literal["google", "local"] = "google",
        emit: Emit = print_log,
    ) -> None:
        self.api = Tpuctl(stack_file, name=name, project=project, cloud=cloud, emit=emit)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the event loop; the stack is not changed. No method may be called afterwards."""
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of `api` and return its result."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    plan = _blocking(Tpuctl.plan)
    up = _blocking(Tpuctl.up)
    status = _blocking(Tpuctl.status)
    run = _blocking(Tpuctl.run)
    submit = _blocking(Tpuctl.submit)
    follow = _blocking(Tpuctl.follow)
    job = _blocking(Tpuctl.job)
    jobs = _blocking(Tpuctl.jobs)
    log = _blocking(Tpuctl.log)
    stop = _blocking(Tpuctl.stop)
    explain = _blocking(Tpuctl.explain)
    report = _blocking(Tpuctl.report)
    down = _blocking(Tpuctl.down)
