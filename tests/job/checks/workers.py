"""Checks of the worker pool; a script, as spawned processes import the main module again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from corpus.workers import ITEMS_AHEAD, Workers
from errors import JobError


def doubling(slowest: float) -> Callable[[int], int]:
    def double(item: int) -> int:
        time.sleep(slowest * (item * 7 % 5) / 5)  # later items often finish first
        return 2 * item

    return double


def failing(kind: str) -> Callable[[int], int]:
    if kind == "make":
        raise JobError("no such thing", 2)

    def fail(item: int) -> int:
        if item == 5 and kind == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if item == 5 and kind == "raise":
            raise ValueError("item 5")
        return item

    return fail


def importing(_: int) -> Callable[[str], bool]:
    return lambda name: name in sys.modules


def check_order() -> None:
    for processes in (1, 2, 3):
        with Workers(processes, doubling, 0.01) as workers:
            assert list(workers.map(range(50))) == [2 * item for item in range(50)]
            assert list(workers.map([])) == []
            assert list(workers.map([4])) == [8]


def check_bounds() -> None:
    for processes in (1, 2):
        produced = 0

        def items() -> Iterator[int]:
            nonlocal produced
            for item in range(100):
                produced += 1
                yield item

        with Workers(processes, doubling, 0.0) as workers:
            for consumed, _ in enumerate(workers.map(items()), 1):
                assert produced <= consumed + processes * (1 + ITEMS_AHEAD), (produced, consumed)


def check_failures() -> None:
    for processes, kind, error, message in [
        (1, "make", JobError, "no such thing"),
        (2, "make", JobError, "no such thing"),
        (1, "raise", ValueError, "item 5"),
        (2, "raise", ValueError, "item 5"),
        (2, "die", JobError, "try fewer --processes"),
    ]:
        results = []
        try:
            with Workers(processes, failing, kind) as workers:
                for item in workers.map(range(20)):
                    results.append(item)
        except error as raised:
            assert message in str(raised), raised
            assert getattr(raised, "exit_code", 2) == (1 if kind == "die" else 2)
        else:
            raise AssertionError(kind)
        assert results == list(range(len(results))) and len(results) <= 5


def check_workers_import_only_what_they_need() -> None:
    # A worker imports only what its function needs, unlike a fork.
    import sqlite3

    with Workers(2, importing, 0) as workers:
        assert list(workers.map([sqlite3.__name__, "corpus.workers"])) == [False, True]


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
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, process.returncode
    assert errors == "", errors


def endless() -> int:
    try:
        with Workers(2, doubling, 0.05) as workers:
            for result in workers.map(iter(int, 1)):
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
    check_workers_import_only_what_they_need()
    check_interruption()
    print("checked")
