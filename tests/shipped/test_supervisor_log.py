"""A worker's log: searched by line and timestamp, partly freed, truncated or removed."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.polling import until
from tests.support.supervised_worker import TIMEOUT, Worker
from tpuctl.jobs.shipped.logs import logfile, tail
from tpuctl.jobs.shipped.logs.logfile import Freed, Log, can_free
from tpuctl.jobs.shipped.machine.folder import Folder

FREED = 4


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(Folder(str(tmp_path)))
    if not can_free(log.folder):
        pytest.skip("this file system cannot free parts of files")
    return log


def lines(count: int, first: int = 0) -> bytes:
    return b"".join(b"line %d %s\n" % (number, b"." * 60) for number in range(first, first + count))


def disk_bytes(path: str) -> int:
    return Path(path).stat().st_blocks * 512


# Offsets --------------------------------------------------------------------------------------


def find_offset(worker: Worker, *options: str) -> int:
    done = worker.run("locate", *options)
    assert done.returncode == 0, done.stderr.decode()
    position = json.loads(done.stdout)
    assert position["more"] == 0
    return int(position["offset"])


def test_offset_of_last_lines(worker: Worker) -> None:
    worker.write_spec("print('one'); print('two'); print('50%', end='\\r'); print('100%', end='')")
    worker.record("start")
    log, _ = worker.follow()
    assert log == b"one\ntwo\n50%\r100%"
    for count, expected in enumerate([b"", b"50%\r100%", b"two\n50%\r100%", log, log]):
        assert log[find_offset(worker, "--lines", str(count)) :] == expected


def test_offset_of_timestamp(worker: Worker) -> None:
    """The log has several bursts, and its size is recorded before each of them."""
    gates = [worker.home / f"gate{number}" for number in range(3)]
    worker.write_spec(
        "import os, sys, time\n"
        "print('begin')\n"
        f"for gate in {[str(gate) for gate in gates]!r}:\n"
        "    while not os.path.exists(gate): time.sleep(0.02)\n"
        "    print('burst', gate[-1]); print('half a line', end='')\n"
        "time.sleep(600)\n"
    )
    worker.record("start")
    worker.until_logged(b"begin")
    timestamps = []
    for number, gate in enumerate(gates):
        size = (worker.folder / "log").stat().st_size
        until(lambda size=size: recorded_size(worker) == size, "the size to be recorded")  # type: ignore[misc]
        time.sleep(0.01)  # recorded timestamps are rounded up
        timestamps.append(time.time())
        gate.touch()
        worker.until_logged(b"burst %d\nhalf a line" % number)
    log = (worker.folder / "log").read_bytes()
    for number, moment in enumerate(timestamps):
        output = log[find_offset(worker, "--since", str(moment)) :]
        # A line that began earlier is shown whole: it was incomplete at the time.
        half = b"half a line" if number else b""
        assert output.startswith(half + b"burst %d\n" % number)
    both = log[find_offset(worker, "--since", str(timestamps[0]), "--lines", "2") :]
    assert both == b"half a lineburst 2\nhalf a line"
    assert find_offset(worker, "--since", str(timestamps[2]), "--lines", "9") == find_offset(
        worker, "--since", str(timestamps[2])
    )
    assert find_offset(worker, "--since", "0") == 0


def recorded_size(worker: Worker) -> int:
    """The last recorded size."""
    path = worker.folder / "timestamps"
    text = path.read_bytes() if path.exists() else b""
    return int(text.split()[-1]) if text.endswith(b"\n") else -1


# Freed ----------------------------------------------------------------------------------------


def test_only_uploaded_part_is_freed(log: Log, tmp_path: Path) -> None:
    data = lines(20_000)
    (tmp_path / "log").write_bytes(data)
    before = disk_bytes(log.path)
    uploaded = len(data) // 2
    log.free(uploaded, max_bytes=len(data) // 4)
    first = log.first()
    assert uploaded - 4096 < first <= uploaded
    assert disk_bytes(log.path) <= before - first + 4096
    assert log.size() == len(data)
    assert log.read(first, len(data)) == data[first:]
    for begin in (0, first - 1):
        with pytest.raises(Freed) as freed:
            log.read(begin, 100)
        assert freed.value.first == first


def test_small_log_is_not_freed(log: Log, tmp_path: Path) -> None:
    data = lines(2_000)
    (tmp_path / "log").write_bytes(data)
    log.free(len(data), max_bytes=len(data))
    assert (log.first(), log.read(0, len(data))) == (0, data)


def test_half_of_limit_is_kept_even_if_uploaded(log: Log, tmp_path: Path) -> None:
    data = lines(20_000)
    (tmp_path / "log").write_bytes(data)
    log.free(len(data), max_bytes=200_000)
    assert 100_000 <= len(data) - log.first() < 100_000 + 4096


def test_nothing_is_freed_on_unsupported_file_system(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = lines(20_000)
    (tmp_path / "log").write_bytes(data)
    # fallocate fails on a pipe, as on a file system without holes.
    handle = os.pipe()[1]
    real = logfile.punch
    monkeypatch.setattr(logfile, "punch", lambda _, length: real(handle, length))
    log.free(len(data), max_bytes=1000)
    assert (log.first(), log.read(0, len(data))) == (0, data)


def test_offset_is_stored_before_freeing(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = lines(20_000)
    (tmp_path / "log").write_bytes(data)
    calls = []
    monkeypatch.setattr(logfile, "punch", lambda _, length: calls.append((length, log.first())))
    log.free(len(data), max_bytes=1000)
    assert calls[-1][0] == calls[-1][1] > 0


def test_read_of_part_being_freed_fails(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = lines(20_000)
    (tmp_path / "log").write_bytes(data)
    read = os.pread

    def read_while_freeing(handle: int, length: int, begin: int) -> bytes:
        log.free(len(data), max_bytes=1000)
        return read(handle, length, begin)

    monkeypatch.setattr(os, "pread", read_while_freeing)
    with pytest.raises(Freed):
        log.read(0, 100)


def test_missing_lines_of_freed_part_are_counted(log: Log, tmp_path: Path) -> None:
    data = lines(10_000)
    (tmp_path / "log").write_bytes(data)
    log.free(len(data), max_bytes=len(data) // 2)
    begin, more = log.last_lines(9_000, 0)
    assert begin >= log.first()
    assert data[begin:] == lines(9_000 - more, first=1_000 + more)
    assert log.last_lines(100, 0) == (len(data) - len(lines(100, first=9_900)), 0)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_reader_never_sees_freed_part(worker: Worker, seed: int) -> None:
    """At any time it gets correct bytes, or the first offset that is left."""
    data = lines(60_000)
    worker.write_spec(
        f"import sys; sys.stdout.buffer.write(open({str(worker.home / 'data')!r}, 'rb').read())"
    )
    (worker.home / "data").write_bytes(data)
    worker.record("start")
    assert worker.follow()[0] == data
    log = Log(Folder(str(worker.folder)))
    if not can_free(log.folder):
        pytest.skip("this file system cannot free parts of files")
    freeing = (  # the shipped modules, which import each other from their folder
        "import sys; sys.path.append(sys.argv[1])\n"
        "from folder import Folder; from logfile import Log\n"
        "log = Log(Folder(sys.argv[1]))\n"
        f"for safe in range({50_000 * (seed + 1)}, {len(data)}, 50_000): log.free(safe, 1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", freeing, str(worker.folder)]) as other:
        outcomes = set()
        for offset in itertools.count(0, 1000 + 7 * seed):
            tail = worker.run("tail", "--offset", str(offset))
            outcomes.add(tail.returncode)
            first = len(data) if tail.returncode == 0 else json.loads(tail.stderr)["first"]
            assert tail.stdout == data[offset : offset + len(tail.stdout)]
            assert offset + len(tail.stdout) <= first or tail.returncode == 0
            if tail.returncode == 0:
                assert offset + len(tail.stdout) == len(data)
            if other.poll() is not None:
                break
    assert other.returncode == 0
    assert worker.run("tail", "--offset", "0").returncode == FREED
    rest = worker.run("tail", "--offset", str(log.first()))
    assert rest.stdout == data[log.first() :]


# Final upload ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_upload_failing", [False, True])
def test_tail_ends_after_log_is_uploaded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    is_upload_failing: bool,
) -> None:
    """However long that takes, since the machine may then be deleted, unless the upload fails."""
    monkeypatch.setattr(tail, "UPLOAD_WAIT", 0.0)
    monkeypatch.setattr(tail, "RECORD_POLL_SECONDS", 0.01)
    (tmp_path / "log").write_bytes(b"all of it\n")
    if is_upload_failing:
        (tmp_path / "upload_error.json").write_text("{}")
    states = itertools.chain([None] * 5, itertools.repeat(True))
    folder = Folder(str(tmp_path))
    exit_code = tail.tail(
        folder, 0, True, lambda: {"state": "succeeded", "log_uploaded": next(states)}
    )
    assert exit_code == 0
    output = capfd.readouterr()
    assert output.out == "all of it\n"
    assert json.loads(output.err)["log_uploaded"] is (None if is_upload_failing else True)


# Truncated or removed -------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["emptied", "truncated", "removed"])
def test_truncated_or_removed_log_does_not_affect_job(worker: Worker, damage: str) -> None:
    gate = worker.home / "gate"
    worker.write_spec(
        "import os, sys, time\n"
        "print('x' * 999)\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.02)\n"
        "print('afterwards'); sys.exit(5)\n"
    )
    worker.record("start")
    path = worker.folder / "log"
    worker.until_logged(b"x\n")
    until(lambda: recorded_size(worker) == 1000, "the size to be recorded")
    tail = worker.open("tail", "--follow", "--offset", "1000")
    if damage == "removed":
        path.unlink()
    else:
        os.truncate(path, 0 if damage == "emptied" else 500)
    until(lambda: path.exists() and b"this log was" in path.read_bytes(), "the message about it")
    gate.touch()
    output, stderr = tail.communicate(timeout=TIMEOUT)
    assert tail.returncode == 0, stderr.decode()
    record = json.loads(stderr)
    assert (record["state"], record["exit_code"]) == ("failed", 5)
    action = "deleted" if damage == "removed" else "truncated"
    assert f"this log was {action} on the machine: ".encode() in output
    # A reader resumes at the offset where it stopped.
    assert (b"afterwards" in output) == (damage != "removed")
    assert record["log_bytes"] == path.stat().st_size == 1000 + len(output)
    assert worker.run("tail", "--offset", "0").returncode == FREED
