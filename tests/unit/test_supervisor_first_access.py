"""A script refused gs:// through a TPU node is started again while the node's account is new.

As in test_supervisor.py, processes are what is under test.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.polling import until
from tests.support.supervised_worker import PYTHONS, TIMEOUT, Worker
from tpuctl.model.job import WorkerRecord

AGENT = "service-495559152420@cloud-tpu.iam.gserviceaccount.com"
OTHER = "service-495559152421@cloud-tpu.iam.gserviceaccount.com"
# As TensorFlow printed it, in googlecolab/colabtools issue 1177 and, in the words of today, in
# google-research/text-to-text-transfer-transformer issue 1003.
OLD = "{} does not have storage.objects.create access to bucketname/train/events.out.tfevents."
NEW = "{} does not have storage.objects.list access to the Google Cloud Storage bucket."
AGAIN = (
    b"tpuctl: waiting for the TPU's service account to get access: restarting the script in 0.1 s\n"
)
SOON = {"account": AGENT, "seconds": 120, "pause": 0.1}
LONG = {**SOON, "pause": 60}
# Counts its starts in the home folder, and is refused at the first of them.
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


@pytest.fixture(params=PYTHONS, ids=lambda path: Path(path).name)
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(tmp_path, request.param)
    yield worker
    worker.close()


def give(worker: Worker, *, text: str = NEW, refused: int = 1, code: int = 1, **more: Any) -> None:
    worker.write_spec(SCRIPT, str(refused), text.format(AGENT), str(code), **more)


def starts(worker: Worker) -> int:
    return (worker.home / "starts").stat().st_size


@pytest.mark.parametrize("text", [OLD, NEW])
def test_denied_first_access_restarts_script(worker: Worker, text: str) -> None:
    give(worker, text=text, first_access=SOON)
    assert worker.record("start").attempt == 1
    log, record = worker.follow()
    assert (record.state, record.exit_code, record.cause) == ("succeeded", 0, "")
    assert (record.attempt, record.restarts) == (1, 1)
    first, again, second = log.partition(AGAIN)
    assert again, log
    assert first.startswith(b"start 1\n")
    assert first.endswith(
        b'access to the Google Cloud Storage bucket."\n' if text is NEW else b"\n"
    )
    assert second == b"start 2\n"
    assert record.log_bytes == len(log)


def test_pauses_grow(worker: Worker) -> None:
    give(worker, refused=2, first_access=SOON)
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
        ("its time is over", {"first_access": {**SOON, "seconds": 0}}),
        ("another account", {"first_access": {**SOON, "account": OTHER}}),
        ("a part of the account's name", {"first_access": {**SOON, "account": AGENT[1:]}}),
        ("other words", {"text": "{} does not have permission", "first_access": SOON}),
        ("no failure", {"code": 0, "first_access": SOON}),
    ],
)
def test_other_failures_are_not_retried(
    worker: Worker, reason: str, options: dict[str, Any]
) -> None:
    give(worker, **{"code": 7, **options})
    worker.record("start")
    log, record = worker.follow()
    assert record.exit_code == options.get("code", 7), reason
    assert (record.restarts, starts(worker)) == (0, 1), reason
    assert b"tpuctl:" not in log


def test_only_last_error_counts(worker: Worker) -> None:
    """A refusal that the script got over is not what it failed of."""
    script = f"print({NEW.format(AGENT)!r})\nprint('x' * 70_000)\nraise SystemExit(3)"
    worker.write_spec(script, first_access=SOON)
    worker.record("start")
    assert worker.follow()[1].exit_code == 3


def test_denial_of_earlier_start_does_not_count(worker: Worker) -> None:
    give(worker, first_access=SOON)
    with (worker.folder / "code/job.py").open("a") as file:
        file.write("sys.exit(5)")
    worker.record("start")
    _, record = worker.follow()
    assert (record.exit_code, record.restarts, starts(worker)) == (5, 1, 2)


def test_exit_code_of_script_after_deadline(worker: Worker) -> None:
    give(worker, refused=99, code=7, first_access={**LONG, "seconds": 4})
    worker.record("start")
    log, record = worker.follow()
    assert (record.state, record.exit_code, record.cause) == ("failed", 7, "script")
    assert (record.restarts, starts(worker)) == (1, 2), "the last start is when the time ends"
    assert log.count(b"tpuctl: ") == 1


def test_stop_ends_pause(worker: Worker) -> None:
    give(worker, first_access=LONG)
    worker.record("start")
    worker.until_logged(b"restarting the script in 32 s\n")  # as long as it gets
    record = worker.record("stop", "--grace", "5")
    assert (record.state, record.exit_code, record.restarts) == ("stopped", 143, 1)
    assert starts(worker) == 1
    until(lambda: not worker.processes(), "the end of all processes")


def test_machine_shutdown_during_pause_is_not_a_job_failure(worker: Worker) -> None:
    give(worker, first_access=LONG)
    worker.record("start")
    worker.until_logged(b"restarting the script in 32 s\n")
    os.kill(worker.pid_of("supervisor.py"), signal.SIGTERM)
    _, record = worker.follow()
    assert (record.state, record.cause, starts(worker)) == ("failed", "terminated", 1)


def test_supervisor_killed_during_pause_is_replaced_and_restarts_script(
    worker: Worker,
) -> None:
    give(worker, first_access=LONG)
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
    assert starts(worker) == 2
    assert log == (worker.folder / "log").read_bytes()
    assert log.endswith(b"start 2\n")
