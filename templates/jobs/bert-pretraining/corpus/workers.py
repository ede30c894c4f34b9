"""A pool of worker processes with ordered results, bounded memory and reliable cleanup.

Processes are spawned, not forked: TensorFlow's threads do not survive a fork, and a worker that
imports only what its function needs starts much faster than TensorFlow.
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

__all__ = ["Workers", "processor_count"]

ITEMS_AHEAD = 2  # per process, submitted beyond the result that is waited for

# In a worker: `make` and its arguments, and the function that it returned.
state: dict[str, Any] = {}


class Workers:
    """Processes that each create a function once and apply it to items.

        with Workers(processes, make, *arguments) as workers:
            for result in workers.map(items): ...

    `make(*arguments)` returns the function. `make` and its arguments are pickled once per process,
    items and results every time, so `make` is a module-level function whose module does not import
    TensorFlow. With one process, everything runs in the caller's process.

    Leaving the block stops the processes; they also exit when the caller's process is killed.
    Ctrl-C reaches only the caller.
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
                initializer=initialize,
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
        """Yield the results in the order of the items.

        At most `1 + ITEMS_AHEAD` items per process are taken before their results are consumed.
        Exceptions of the function are raised here; a process that dies raises JobError.
        """
        if self.pool is None:
            yield from map(self.make(*self.arguments), items)
            return
        source = iter(items)
        pending: deque[Future[Any]] = deque()
        try:
            for item in islice(source, self.processes * (1 + ITEMS_AHEAD)):
                pending.append(self.submit(self.pool, item))
            while pending:
                result = pending.popleft().result()
                for item in islice(source, 1):
                    pending.append(self.submit(self.pool, item))
                yield result
        except BrokenProcessPool as error:
            raise JobError(
                "a worker process died, most likely out of memory: try fewer --processes"
            ) from error

    def submit(self, pool: ProcessPoolExecutor, item: Any) -> Future[Any]:
        # A process started here inherits the blocked signal, so only the caller gets Ctrl-C.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return pool.submit(apply, item)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def processor_count() -> int:
    """Return the number of processors available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def initialize(make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Initialize a worker process."""
    state.update(make=make, arguments=arguments)
    threading.Thread(target=exit_with_parent, daemon=True).start()


def exit_with_parent() -> None:
    """Exit this process when its parent exits, even if the parent is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def apply(item: Any) -> Any:
    # Created for the first item, not at startup, so that exceptions reach the caller.
    if "function" not in state:
        state["function"] = state["make"](*state["arguments"])
    return state["function"](item)
