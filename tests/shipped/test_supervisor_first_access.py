"""A script denied access to gs:// by a TPU node is restarted while the node's account is new."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.support.polling import until
from tests.support.supervised_worker import TIMEOUT, Worker
from tpuctl.model.jobs.job import WorkerRecord

AGENT = "service-495559152420@cloud-tpu.iam.gserviceaccount.com"
OTHER = "service-495559152421@cloud-tpu.iam.gserviceaccount.com"
# As printed by TensorFlow, in googlecolab/colabtools issue 1177 and, in its current form, in
# google-research/text-to-text-transfer-transformer issue 1003.
OLD = "{} does not have storage.objects.create access to bucketname/train/events.out.tfevents."
NEW = "{} does not have storage.objects.list access to the Google Cloud Storage bucket."
RESTART_MESSAGE = (
    b"tpuctl: waiting for the TPU's service account to get access: restarting the script in 0.1 s\n"
)
SHORT_PAUSE = {"account": AGENT, "seconds": 120, "pause": 0.1}
LONG_PAUSE = {**SHORT_PAUSE, "pause": 60}
# Counts its starts in the home folder, and is denied access at the first ones.
SCRIPT = """
import os, sys
counted = os.path.expanduser("~/starts")
with open(counted, "a") as file:
    file.write(".")
start = os.path.getsize(counted)
print("start", start, flush=True)
if start <= int(sys.argv[1]):
    print("Error executing an HTTP request: HTTP response code 403 with body '{")
    sys.stdout.write('  "message": "' + sys.argv[2] + '"')
    sys.exit(int(sys.argv[3]))
"""


def write_job(
    worker: Worker, *, text: str = NEW, denials: int = 1, code: int = 1, **more: Any
) -> None:
    worker.write_spec(SCRIPT, str(denials), text.format(AGENT), str(code), **more)


def count_starts(worker: Worker) -> int:
    return (worker.home / "starts").stat().st_size


@pytest.mark.parametrize("text", [OLD, NEW])
def test_denied_first_access_restarts_script(worker: Worker, text: str) -> None:
    write_job(worker, text=text, first_access=SHORT_PAUSE)
    assert worker.record("start").attempt == 1
    log, record = worker.follow()
    assert (record.state, record.exit_code, record.cause) == ("succeeded", 0, "")
    assert (record.attempt, record.restarts) == (1, 1)
    first, message, second = log.partition(RESTART_MESSAGE)
    assert message, log
    assert first.startswith(b"start 1\n")
    assert first.endswith(
        b'access to the Google Cloud Storage bucket."\n' if text is NEW else b"\n"
    )
    assert second == b"start 2\n"
    assert record.log_bytes == len(log)


def test_pauses_grow(worker: Worker) -> None:
    write_job(worker, denials=2, first_access=SHORT_PAUSE)
    worker.record("start")
    log, record = worker.follow()
    assert (record.exit_code, record.restarts) == (0, 2)
    lines = [line for line in log.splitlines() if line.startswith(b"tpuctl: ")]
    assert [line.rpartition(b"restarting the script in ")[2] for line in lines] == [
        b"0.1 s",
        b"0.2 s",
    ]


@pytest.mark.parametrize(
    ("reason", "options"),
    [
        ("no first access to wait for", {}),
        ("after its deadline", {"first_access": {**SHORT_PAUSE, "seconds": 0}}),
        ("another account", {"first_access": {**SHORT_PAUSE, "account": OTHER}}),
        ("a part of the account's name", {"first_access": {**SHORT_PAUSE, "account": AGENT[1:]}}),
        ("another message", {"text": "{} does not have permission", "first_access": SHORT_PAUSE}),
        ("no failure", {"code": 0, "first_access": SHORT_PAUSE}),
    ],
)
def test_other_failures_are_not_retried(
    worker: Worker, reason: str, options: dict[str, Any]
) -> None:
    write_job(worker, **{"code": 7, **options})
    worker.record("start")
    log, record = worker.follow()
    assert record.exit_code == options.get("code", 7), reason
    assert (record.restarts, count_starts(worker)) == (0, 1), reason
    assert b"tpuctl:" not in log


def test_only_last_error_counts(worker: Worker) -> None:
    """A denial that the script handled is not the reason of its failure."""
    script = f"print({NEW.format(AGENT)!r})\nprint('x' * 70_000)\nraise SystemExit(3)"
    worker.write_spec(script, first_access=SHORT_PAUSE)
    worker.record("start")
    assert worker.follow()[1].exit_code == 3


def test_denial_of_earlier_start_does_not_count(worker: Worker) -> None:
    write_job(worker, first_access=SHORT_PAUSE)
    with (worker.folder / "code/job.py").open("a") as file:
        file.write("sys.exit(5)")
    worker.record("start")
    _, record = worker.follow()
    assert (record.exit_code, record.restarts, count_starts(worker)) == (5, 1, 2)


def test_exit_code_of_script_after_deadline(worker: Worker) -> None:
    write_job(worker, denials=99, code=7, first_access={**LONG_PAUSE, "seconds": 4})
    worker.record("start")
    log, record = worker.follow()
    assert (record.state, record.exit_code, record.cause) == ("failed", 7, "script")
    assert (record.restarts, count_starts(worker)) == (1, 2), "the last start is at the deadline"
    assert log.count(b"tpuctl: ") == 1


def test_stop_ends_pause(worker: Worker) -> None:
    write_job(worker, first_access=LONG_PAUSE)
    worker.record("start")
    worker.until_logged(b"restarting the script in 32 s\n")  # the maximum
    record = worker.record("stop", "--grace", "5")
    assert (record.state, record.exit_code, record.restarts) == ("stopped", 143, 1)
    assert count_starts(worker) == 1
    until(lambda: not worker.processes(), "the end of all processes")


def test_machine_shutdown_during_pause_is_not_a_job_failure(worker: Worker) -> None:
    write_job(worker, first_access=LONG_PAUSE)
    worker.record("start")
    worker.until_logged(b"restarting the script in 32 s\n")
    os.kill(worker.pid_of("supervisor.py"), signal.SIGTERM)
    _, record = worker.follow()
    assert (record.state, record.cause, count_starts(worker)) == ("failed", "terminated", 1)


def test_supervisor_killed_during_pause_is_replaced_and_restarts_script(
    worker: Worker,
) -> None:
    write_job(worker, first_access=LONG_PAUSE)
    worker.record("start")
    worker.until_logged(b"restarting the script in 32 s\n")
    until(lambda: not (worker.folder / "exit.json").exists(), "the pause")
    supervisor = worker.pid_of("supervisor.py")
    tail = worker.open("tail", "--follow")
    os.kill(supervisor, signal.SIGKILL)
    log, record = tail.communicate(timeout=TIMEOUT)
    worker_record = WorkerRecord.model_validate_json(record)
    assert (worker_record.state, worker_record.exit_code, worker_record.restarts) == (
        "succeeded",
        0,
        1,
    )
    assert count_starts(worker) == 2
    assert log == (worker.folder / "log").read_bytes()
    assert log.endswith(b"start 2\n")
