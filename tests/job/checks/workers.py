"""Checks of work in processes; a script, as spawned processes import the main module again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

from files import JobError
from records import in_processes


def double(slowest: float, item: int) -> int:
    time.sleep(slowest * (item * 7 % 5) / 5)  # later items often finish first
    return 2 * item


def fail(kind: str, item: int) -> int:
    if item == 5 and kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if item == 5 and kind == "raise":
        raise ValueError("item 5")
    return item


def is_imported(name: str) -> bool:
    return name in sys.modules


def check_order() -> None:
    for processes in (1, 2, 3):
        for count in (50, 0, 1):
            results = list(in_processes(partial(double, 0.01), range(count), processes))
            assert results == [2 * item for item in range(count)]


def check_bounds() -> None:
    for processes in (1, 2):
        produced = 0

        def items() -> Iterator[int]:
            nonlocal produced
            for item in range(100):
                produced += 1
                yield item

        for consumed, _ in enumerate(in_processes(partial(double, 0.0), items(), processes), 1):
            assert produced <= consumed + 2 * processes, (produced, consumed)


def check_failures() -> None:
    for processes, kind, error, message in [
        (1, "raise", ValueError, "item 5"),
        (2, "raise", ValueError, "item 5"),
        (2, "die", JobError, "try fewer --processes"),
    ]:
        results = []
        try:
            for item in in_processes(partial(fail, kind), range(20), processes):
                results.append(item)
        except error as raised:
            assert message in str(raised), raised
        else:
            raise AssertionError(kind)
        assert results == list(range(len(results))) and len(results) <= 5


def check_processes_import_only_what_they_need() -> None:
    # A spawned process imports only what its function needs, unlike a fork.
    import sqlite3

    names = [sqlite3.__name__, "records"]
    assert list(in_processes(is_imported, names, 2)) == [False, True]


def check_end_while_results_are_sent() -> None:
    results = in_processes(bytes, [100_000_000] * 6, 2)  # sending one takes a while
    assert len(next(results)) == 100_000_000
    results.close()  # nobody sends the rest of the next ones: without an end, the test times out


def check_interruption() -> None:
    """Ctrl-C reaches every process in the terminal's group; only the caller reports it."""
    with subprocess.Popen(
        [sys.executable, __file__, "endless"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "40\n":
                break
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, process.returncode
    assert errors == "", errors
    assert time.monotonic() - began < 20  # it does not wait for what the processes do


def endless() -> int:
    def items() -> Iterator[int]:
        yield 0
        while True:
            yield 5_000_001  # takes minutes

    try:
        for result in in_processes(partial(double, 300.0), items(), 2):
            print(40 + result, flush=True)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "endless":
        sys.exit(endless())
    check_order()
    check_bounds()
    check_failures()
    check_processes_import_only_what_they_need()
    check_end_while_results_are_sent()
    check_interruption()
    print("checked")
