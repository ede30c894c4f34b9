"""Processes of a job killed at any time, as by the kernel's out-of-memory killer."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.support.polling import until
from tests.support.supervised_worker import PYTHONS, Worker, worker_fixture
from tpuctl.model.jobs.job import WorkerRecord

LONG = "import time\nprint('began', flush=True)\ntime.sleep(600)"
# Counts its starts in the home folder, and runs long enough to be killed.
COUNTING = """
import os, sys, time
with open(os.path.expanduser("~/starts"), "a") as file:
    file.write(".")
for number in range(20):
    print(number, flush=True)
    time.sleep(0.02)
sys.exit(7)
"""


worker = worker_fixture(PYTHONS[-1:])


def supervisors(worker: Worker) -> list[int]:
    processes = worker.processes().items()
    return [
        pid for pid, line in processes if any(Path(part).name == "supervisor.py" for part in line)
    ]


@pytest.mark.parametrize(
    "seed", [0, 1, 2, *(pytest.param(s, marks=pytest.mark.soak) for s in range(3, 15))]
)
def test_supervisor_killed_at_any_time_is_replaced(worker: Worker, seed: int) -> None:
    choice = random.Random(seed)
    worker.write_spec(COUNTING)
    for _ in range(6):
        worker.run("start")  # may fail if the previous one was just killed
        time.sleep(choice.uniform(0, 0.12))
        for pid in supervisors(worker):
            os.kill(pid, signal.SIGKILL)
    log, record = worker.follow()
    assert log == b"".join(b"%d\n" % number for number in range(20))
    assert (record.state, record.exit_code, record.cause) == ("failed", 7, "script")
    assert (worker.home / "starts").read_text() == "."
    until(lambda: not worker.processes(), "the end of all processes")


def test_second_job_parent_starts_and_breaks_nothing(worker: Worker) -> None:
    """A supervisor may be killed after starting its job parent, which has written nothing yet."""
    worker.write_spec(LONG)
    worker.record("start")
    worker.until_logged(b"began")
    job_parent = worker.pid_of("job_parent.py")
    argv = worker.processes()[job_parent]
    started = {"job_parent": job_parent}  # written after the script has begun
    until(lambda: worker.read("started.json") == started, "the job parent's record")
    environment = {**worker.environment, "TPUCTL_FOLDER": str(worker.folder)}
    assert os.spawnve(os.P_WAIT, argv[0], argv, environment) == 1
    assert worker.read("started.json") == started
    worker.record("stop", "--grace", "5")
    assert os.spawnve(os.P_WAIT, argv[0], argv, environment) == 1
    assert worker.follow()[0].count(b"began") == 1


def test_processes_left_by_killed_job_parent_are_ended(worker: Worker) -> None:
    """Otherwise they would hold the chips, unsupervised."""
    worker.write_spec(
        "import subprocess, sys, time\n"
        "child = [sys.executable, '-c', 'import time; time.sleep(600)', 'stray']\n"
        "subprocess.Popen(child, start_new_session=True)\n" + LONG
    )
    worker.record("start")
    worker.until_logged(b"began")
    worker.kill("job_parent.py")
    _, record = worker.follow()
    assert (record.state, record.exit_code, record.cause) == ("lost", 69, "lost")
    until(lambda: not worker.processes(), "the end of all processes")


def test_killed_script_is_not_lost(worker: Worker) -> None:
    worker.write_spec(LONG)
    worker.record("start")
    worker.until_logged(b"began")
    worker.kill("job.py")
    _, record = worker.follow()
    assert (record.state, record.exit_code, record.cause) == ("failed", 137, "signal")


@pytest.mark.parametrize("command", ["tail", "start", "stop"])
def test_commands_report_that_supervisor_cannot_start(worker: Worker, command: str) -> None:
    """As on a full disk, where the supervisor's log cannot be opened."""
    worker.write_spec(LONG)
    worker.record("start")
    worker.until_logged(b"began")
    (worker.folder / "supervisor.log").unlink()
    (worker.folder / "supervisor.log").mkdir()
    worker.kill("supervisor.py")
    options = {"tail": ["--follow"], "start": [], "stop": ["--grace", "1"]}[command]
    done = worker.run(command, *options)
    assert done.returncode == 1
    assert b"the supervisor did not start: " in done.stderr
    assert done.stdout == b""
    (worker.folder / "supervisor.log").rmdir()
    record = WorkerRecord.model_validate(json.loads(worker.run("stop", "--grace", "5").stdout))
    assert record.state == "stopped", "a supervisor starts once there is space"
