"""One worker of a job whose workers start together, until it gets the start signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess

from tests.support.polling import until
from tests.support.supervised_worker import PYTHONS, Worker, worker_fixture
from tpuctl.model.jobs.job import WorkerRecord

SCRIPT = (
    "import os\nprint('began', flush=True)\nopen(os.path.expanduser('~/began'), 'a').write('.')"
)


worker = worker_fixture(PYTHONS[-1:])


def prepare_job(worker: Worker, seconds: float = 600.0) -> None:
    worker.write_spec(SCRIPT, start_barrier={"workers": [0, 1, 2, 3], "timeout_seconds": seconds})
    assert worker.record("start", "--until", "ready", "--timeout", "30").state == "ready"


def count_starts(worker: Worker) -> int:
    began = worker.home / "began"
    return len(began.read_text()) if began.exists() else 0


def send_signal(worker: Worker) -> None:
    (worker.folder / "start").touch()


def test_ready_worker_starts_after_signal(worker: Worker) -> None:
    prepare_job(worker)
    # Until the second response it has checked for the signal several times.
    assert worker.record("start", "--until", "running", "--timeout", "1").state == "ready"
    assert count_starts(worker) == 0
    send_signal(worker)
    record = worker.record("start", "--until", "running", "--timeout", "30")
    assert record.state in ("running", "succeeded")
    assert worker.follow()[0] == b"began\n"


def test_command_that_started_job_takes_signal_and_follows_log(worker: Worker) -> None:
    worker.write_spec(SCRIPT, start_barrier={"workers": [0, 1], "timeout_seconds": 600.0})
    argv = worker.argv("start", "--until", "ready", "--timeout", "30", "--continue")
    pipe = subprocess.PIPE
    with subprocess.Popen(
        argv, env=worker.environment, stdin=pipe, stdout=pipe, stderr=pipe
    ) as client:
        assert client.stdin and client.stdout and client.stderr
        assert WorkerRecord.model_validate_json(client.stdout.readline()).state == "ready"
        client.stdin.write(b"start\n")
        client.stdin.flush()
        assert client.stdout.readline() == b"started\n"
        client.stdin.write(b"2\n")
        client.stdin.flush()
        assert client.stdout.read() == b"gan\n"
        assert WorkerRecord.model_validate_json(client.stderr.read()).state == "succeeded"
    assert client.returncode == 0


def test_command_that_started_job_ends_with_its_input(worker: Worker) -> None:
    prepare_job(worker)
    done = worker.run("start", "--until", "ready", "--continue", input=b"")
    assert WorkerRecord.model_validate_json(done.stdout).state == "ready"
    assert count_starts(worker) == 0


def test_stop_ends_wait_for_start(worker: Worker) -> None:
    prepare_job(worker)
    record = worker.record("stop", "--grace", "30")
    assert (record.state, record.exit_code, record.cause) == ("stopped", 143, "stopped")
    assert count_starts(worker) == 0
    send_signal(worker)
    assert worker.record("start").state == "stopped"
    until(lambda: not worker.processes(), "the end of all processes")
    assert count_starts(worker) == 0


def test_failure_of_other_worker_ends_wait(worker: Worker) -> None:
    prepare_job(worker)
    (worker.folder / "end.json").write_text('{"worker": 3, "state": "failed"}')
    log, record = worker.follow()
    assert record.is_bystander
    assert (log, count_starts(worker)) == (b"", 0)


def test_supervisor_killed_while_waiting_is_replaced(worker: Worker) -> None:
    prepare_job(worker)
    worker.kill("supervisor.py")
    assert worker.record("start", "--until", "ready", "--timeout", "30").state == "ready"
    assert count_starts(worker) == 0
    worker.kill("supervisor.py")
    send_signal(worker)
    assert worker.follow()[0] == b"began\n"
    assert count_starts(worker) == 1


def test_start_timeout_names_missing_workers(worker: Worker) -> None:
    worker.write_spec(SCRIPT, start_barrier={"workers": [0, 1, 2, 3], "timeout_seconds": 0.5})
    (worker.folder / "missing.json").write_text(json.dumps({"workers": [2, 3]}))
    worker.record("start")
    _, record = worker.follow()
    assert (record.state, record.exit_code, record.cause) == ("failed", 1, "slice")
    assert record.detail.startswith("worker 2, 3 was not ready to start within ")
    assert count_starts(worker) == 0


def test_machine_shutdown_while_waiting_is_not_a_job_failure(worker: Worker) -> None:
    prepare_job(worker)
    os.kill(worker.pid_of("supervisor.py"), signal.SIGTERM)
    _, record = worker.follow()
    assert (record.state, record.cause, count_starts(worker)) == ("failed", "terminated", 0)
