"""Work shared out to processes: results in order, memory bounded, nothing left behind.

Processes are spawned, not forked: TensorFlow's threads do not survive a fork, and a worker that
imports only what its function needs starts in a fraction of the seconds TensorFlow takes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any

from errors import JobError

__all__ = ["Workers", "available"]

AHEAD = 2  # items handed out for each process beyond the result that is waited for

# In a worker: how to make the function, and the function once it is made.
made: dict[str, Any] = {}


class Workers:
    """Processes that each make a function once and apply it to items.

        with Workers(processes, make, *arguments) as workers:
            for result in workers.map(items): ...

    `make(*arguments)` returns the function; `make` and its arguments are sent to each process
    once, items and results each time, all by pickle, so `make` is a module's function and its
    module imports no TensorFlow. With one process everything happens in the caller's.

    Leaving the block ends the processes; they also end by themselves when the caller's process
    is killed. Ctrl-C reaches the caller alone.
    """

    def __init__(self, processes: int, make: Callable[..., Callable[[Any], Any]], *arguments: Any):
        self.processes = processes
        self.make = make
        self.arguments = arguments
        self.pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        if self.processes > 1:
            self.pool = ProcessPoolExecutor(
                self.processes,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=begin,
                initargs=(self.make, self.arguments),
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)

    def map(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the results in the order of the items, whichever process is done first.

        At most `1 + AHEAD` items for each process are taken before their results are. What the
        function raises is raised here; a process that dies raises JobError.
        """
        if self.pool is None:
            yield from map(self.make(*self.arguments), items)
            return
        source = iter(items)
        under_way: deque[Future[Any]] = deque()
        try:
            for item in islice(source, self.processes * (1 + AHEAD)):
                under_way.append(self.submit(self.pool, item))
            while under_way:
                result = under_way.popleft().result()
                for item in islice(source, 1):
                    under_way.append(self.submit(self.pool, item))
                yield result
        except BrokenProcessPool as error:
            raise JobError(
                "a worker process died, most likely for want of memory: try fewer --processes"
            ) from error

    def submit(self, pool: ProcessPoolExecutor, item: Any) -> Future[Any]:
        # A process started here inherits the blocked signal, so that Ctrl-C is the caller's.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return pool.submit(apply, item)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def available() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def begin(make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Make this process a worker."""
    made.update(make=make, arguments=arguments)
    threading.Thread(target=leave_with_parent, daemon=True).start()


def leave_with_parent() -> None:
    """End this process when its parent has ended, even if that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def apply(item: Any) -> Any:
    # Made with the first item, not at the start, so that what it raises reaches the caller.
    if "function" not in made:
        made["function"] = made["make"](*made["arguments"])
    return made["function"](item)
