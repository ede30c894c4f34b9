"""Holders of a worker's chips when a script starts: leftovers, other processes, stale locks.

Files replace the chips; the processes that hold them are real.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.supervised_worker import PYTHONS, TIMEOUT, Worker
from tpuctl.model.jobs.failures import Machines, classify

Hold = Callable[..., "subprocess.Popen[bytes]"]
LIST_LOCKS = "import os\nprint(*sorted(os.listdir(os.path.expanduser('~/tmp'))))"
HOLD_FILES = """
import sys
files = [open(path, "r+") for path in sys.argv[1:]]
print("holds", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(tmp_path, PYTHONS[-1])
    for folder in ("dev/vfio", "tmp"):
        (tmp_path / folder).mkdir(parents=True)
    for chip in ("dev/accel0", "dev/accel1", "dev/vfio/0", "dev/vfio/vfio"):
        (tmp_path / chip).touch()
    (tmp_path / "tmp/libtpu_lockfile").touch()
    yield worker
    worker.close()


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Start a process, and wait until it has these files open."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*paths: Path, **variables: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", HOLD_FILES, *map(str, paths)]
        pipe = subprocess.PIPE
        holder = subprocess.Popen(argv, stdin=pipe, stdout=pipe, env={**os.environ, **variables})
        started.append(holder)
        assert holder.stdout is not None and holder.stdout.readline() == b"holds\n"
        return holder

    yield start
    for holder in started:
        holder.kill()
        holder.communicate()


def start_job(worker: Worker, timeout: float = 30.0, **more: Any) -> None:
    settings: Mapping[str, Any] = {
        "devices": [f"{worker.home}/dev/accel[0-9]*", f"{worker.home}/dev/vfio/[0-9]*"],
        "locks": [f"{worker.home}/tmp/libtpu_lockfile*"],
        "timeout_seconds": timeout,
    }
    worker.write_spec(LIST_LOCKS, accelerator=settings, **more)
    worker.record("start")


def earlier_job(worker: Worker) -> Path:
    """The folder of an earlier attempt."""
    folder = worker.home / ".tpuctl/jobs/20251231-235959-birch/1"
    folder.mkdir(parents=True)
    return folder


def test_unused_lock_is_removed(worker: Worker) -> None:
    (worker.home / "tmp/libtpu_lockfile_1").touch()
    start_job(worker)
    *log_lines, output_line = worker.follow()[0].decode().splitlines()
    assert output_line == ""
    assert [line.partition(", which no process holds")[0] for line in log_lines] == [
        f"tpuctl: removed {worker.home}/tmp/libtpu_lockfile",
        f"tpuctl: removed {worker.home}/tmp/libtpu_lockfile_1",
    ]


def test_lock_in_use_is_kept(worker: Worker, hold: Hold) -> None:
    hold(worker.home / "tmp/libtpu_lockfile")
    start_job(worker)
    assert worker.follow()[0] == b"libtpu_lockfile\n"


def test_lock_of_hidden_process_is_respected(worker: Worker) -> None:
    """The kernel's table lists locks of all processes."""
    with (worker.home / "tmp/libtpu_lockfile").open("r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        program = str(worker.folder / "accelerator.py")
        hidden = "import accelerator, sys; accelerator.scan_holders = lambda paths: []\n"
        hidden += "print(accelerator.is_held(sys.argv[1]))"
        argv = [worker.python, "-c", hidden, file.name]
        folder = str(Path(program).parent)
        assert subprocess.check_output(argv, cwd=folder, timeout=TIMEOUT) == b"True\n"
    assert subprocess.check_output(argv, cwd=folder, timeout=TIMEOUT) == b"False\n"


def test_processes_of_earlier_job_are_killed(worker: Worker, hold: Hold) -> None:
    folder = earlier_job(worker)
    holder = hold(worker.home / "dev/accel1", TPUCTL_FOLDER=str(folder))
    start_job(worker)
    log, record = worker.follow()
    assert record.state == "succeeded", log
    assert f"tpuctl: process {holder.pid} (".encode() in log
    assert b"job 20251231-235959-birch still holds the TPU: stopping it\n" in log
    assert holder.wait(TIMEOUT) == -15


def test_foreign_process_is_named_and_not_killed(worker: Worker, hold: Hold) -> None:
    holder = hold(worker.home / "dev/vfio/0")
    start_job(worker, timeout=0.1)
    log, record = worker.follow()
    assert (record.state, record.exit_code, record.cause) == ("failed", 1, "accelerator")
    assert record.detail.startswith(f"the TPU is already in use by process {holder.pid} (")
    assert Path(sys.executable).name in record.detail
    assert record.detail.encode() in log
    assert holder.poll() is None


def test_notebook_that_holds_a_chip_is_named(worker: Worker, hold: Hold) -> None:
    folder = earlier_job(worker)
    spec = {"job": "20251231-235959-birch", "notebooks": "tpuctl/notebooks/demo"}
    (folder / "spec.json").write_text(json.dumps(spec))
    holder = hold(worker.home / "dev/accel0", TPUCTL_FOLDER=str(folder))
    with (folder / "job.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as its job parent does
        start_job(worker, timeout=0.1)
        log, record = worker.follow()
    assert holder.poll() is None
    failure = classify({0: record}, {0: log}, Machines())
    assert failure is not None
    assert (failure.name, failure.kind) == ("notebook-holds-chips", "failure"), "not retried"
    assert "20251231-235959-birch" in failure.detail


def test_running_job_keeps_its_chips(worker: Worker, hold: Hold) -> None:
    folder = earlier_job(worker)
    holder = hold(worker.home / "dev/accel0", TPUCTL_FOLDER=str(folder))
    with (folder / "job.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as its job parent does
        start_job(worker, timeout=0.1)
        _, record = worker.follow()
    assert record.cause == "accelerator"
    assert record.detail.endswith("job 20251231-235959-birch")
    assert holder.poll() is None


def test_ending_process_is_waited_for(worker: Worker, hold: Hold) -> None:
    holder = hold(worker.home / "dev/accel0")
    start_job(worker)
    assert worker.record("status").state == "preparing"
    holder.communicate()  # ends with its input
    assert worker.follow()[1].state == "succeeded"


def test_vfio_control_device_is_not_a_chip(worker: Worker, hold: Hold) -> None:
    hold(worker.home / "dev/vfio/vfio")
    start_job(worker, timeout=0.1)
    assert worker.follow()[1].state == "succeeded"


def test_chips_served_by_image_are_ignored(worker: Worker, hold: Hold) -> None:
    hold(worker.home / "dev/accel0")
    start_job(worker, timeout=0.1, env={"TPU_LOAD_LIBRARY": "0"})
    assert worker.follow()[0] == b"libtpu_lockfile\n"
