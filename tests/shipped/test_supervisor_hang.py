"""A job that makes no progress is reported, with the stacks of its processes."""

from __future__ import annotations

import json
from typing import Any

from tests.support.polling import until
from tests.support.supervised_worker import Worker

# Prints steps, then waits in a function until a file exists, and prints the rest.
SCRIPT = """
import os, sys, threading, time

def wait_for_peer(path):
    while not os.path.exists(path):
        time.sleep(0.05)

for step in range(8):
    print(f'{{"step": {step}}}', flush=True)
    time.sleep(0.3)
threading.Thread(target=wait_for_peer, args=(sys.argv[1],), name="other").start()
wait_for_peer(sys.argv[1])
print('{"step": 8}', flush=True)
time.sleep(float(sys.argv[2]))
"""
LIMIT = {"factor": 3.0, "min_seconds": 1.0, "is_restarted": False}


def hang_of(worker: Worker) -> Any:
    return worker.read("record.json")["hang"]


def log_of(worker: Worker) -> str:
    return (worker.folder / "log").read_text()


def test_hang_is_reported_with_stacks_until_job_continues(worker: Worker) -> None:
    go = worker.home / "go"
    worker.write_spec(SCRIPT, str(go), "600", hang=LIMIT)
    worker.record("start", "--until", "running", "--timeout", "30")
    worker.until_logged(b"wait_for_peer")
    until(lambda: hang_of(worker) is not None, "the hang in the record")
    hang = hang_of(worker)
    assert hang["worker"] == 0
    assert "after step 7" in hang["detail"]
    assert " in wait_for_peer" in " ".join(hang["stack"][:2])
    assert hang["stack"][-1].endswith("in <module>")
    log = log_of(worker)
    assert f"tpuctl: the job may hang: {hang['detail']}\n" in log
    assert log.count("in wait_for_peer") == 2, "of both threads"
    assert "job.py" in log
    go.touch()
    worker.until_logged(b"tpuctl: the job continues\n")
    until(lambda: hang_of(worker) is None, "the end of the hang")
    assert worker.record("stop", "--grace", "0").state == "stopped"
    assert log_of(worker).count("may hang") == 1


def test_hang_ends_attempt_if_configured(worker: Worker) -> None:
    worker.write_spec(SCRIPT, "/absent", "0", hang={**LIMIT, "is_restarted": True})
    log, record = worker.follow()
    assert (record.state, record.cause, record.exit_code) == ("failed", "hang", 124)
    assert record.detail.startswith("the job hung: no step for ")
    assert b"in wait_for_peer" in log
    assert record.hang is not None


def test_duration_counts_any_output(worker: Worker) -> None:
    script = "import time\nprint('loading', flush=True)\ntime.sleep(600)\n"
    worker.write_spec(script, hang={"seconds": 1.0, "is_restarted": False})
    worker.record("start")
    worker.until_logged(b"in <module>")
    until(lambda: hang_of(worker) is not None, "the hang in the record")
    assert hang_of(worker)["detail"].startswith("no output for ")
    assert log_of(worker).startswith("loading\ntpuctl: the job may hang: no output for ")


def test_hang_of_other_worker_is_reported_too(worker: Worker) -> None:
    barrier = {"workers": [0, 1], "timeout_seconds": 600.0}
    script = "import time\nprint('began', flush=True)\ntime.sleep(600)\n"
    worker.write_spec(script, worker=1, hang=LIMIT, start_barrier=barrier)
    (worker.folder / "start").touch()
    worker.record("start", "--until", "running", "--timeout", "30")
    worker.until_logged(b"began")
    (worker.folder / "hang.json").write_text(json.dumps({"worker": 0, "is_over": False}))
    worker.until_logged(b"in <module>")
    until(lambda: hang_of(worker) is not None, "the hang in the record")
    assert hang_of(worker)["worker"] == 0
    assert "tpuctl: the job may hang: reported by worker 0\n" in log_of(worker)
    (worker.folder / "hang.json").write_text(json.dumps({"worker": 0, "is_over": True}))
    until(lambda: hang_of(worker) is None, "the end of the hang")


def test_processes_without_handler_are_not_signaled(worker: Worker) -> None:
    worker.write_spec(
        "import os\nprint('began', flush=True)\nos.execvp('sleep', ['sleep', '600'])\n",
        hang={"seconds": 1.0, "is_restarted": False},
    )
    worker.record("start")
    worker.until_logged(b"may hang")
    until(lambda: hang_of(worker) is not None, "the hang in the record")
    assert hang_of(worker)["stack"] == []
    assert worker.record("status").state == "running"


def test_existing_sitecustomize_is_imported(worker: Worker) -> None:
    other = worker.home / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("print('customized')\n")
    script = "import sys; print([entry for entry in sys.path if entry.endswith('/python')])"
    worker.write_spec(script, env={"PYTHONPATH": str(other)})
    log, record = worker.follow()
    assert (log, record.state) == (b"customized\n[]\n", "succeeded")


def test_job_of_other_python_runs_without_handler(worker: Worker) -> None:
    worker.write_spec("", argv=["{python}", "-I", "-S", "-c", "print('isolated')"])
    assert worker.follow()[0] == b"isolated\n"
