"""Limits and timestamps of a job on a machine whose clock is set, or that is rebooted."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from tests.support.supervised_worker import PYTHONS, ClockedWorker, worker_fixture
from tpuctl.model.jobs.job import WorkerRecord

HOUR = 3600.0
GATED = """
import os, time
print("began", flush=True)
while not os.path.exists(os.path.expanduser("~/enough")):
    time.sleep(0.02)
"""


worker = worker_fixture(PYTHONS[-1:], ClockedWorker)


def duration(record: WorkerRecord) -> timedelta:
    assert record.finished is not None
    return record.finished - record.started


def test_clock_set_forward_does_not_end_job(worker: ClockedWorker) -> None:
    worker.write_spec(GATED, max_seconds=HOUR)
    worker.record("start")
    worker.until_logged(b"began")
    worker.set_clock(+30 * 24 * HOUR)
    worker.until_checked(3)
    (worker.home / "enough").touch()
    assert worker.follow()[1].state == "succeeded"


def test_clock_set_back_does_not_extend_limit(worker: ClockedWorker) -> None:
    worker.write_spec(GATED, max_seconds=2)
    worker.record("start")
    worker.until_logged(b"began")
    worker.set_clock(-30 * 24 * HOUR)
    _, record = worker.follow()
    assert record.state == "timed_out"
    assert timedelta(0) <= duration(record) < timedelta(hours=1)


def test_job_never_ends_before_its_start(worker: ClockedWorker) -> None:
    """Not even one that never ran, whose end the supervisor records."""
    worker.write_spec(
        GATED, max_seconds=HOUR, start_barrier={"workers": [0, 1], "timeout_seconds": HOUR}
    )
    assert worker.record("start", "--until", "ready", "--timeout", "30").state == "ready"
    worker.set_clock(-30 * 24 * HOUR)
    record = worker.record("stop", "--grace", "5")
    assert record.state == "stopped"
    assert timedelta(0) <= duration(record) < timedelta(hours=1)


def test_limits_apply_to_replaced_supervisor(worker: ClockedWorker) -> None:
    worker.write_spec(GATED, max_seconds=2)
    worker.record("start")
    worker.until_logged(b"began")
    worker.set_clock(-30 * 24 * HOUR)
    worker.kill("supervisor.py")
    assert worker.follow()[1].state == "timed_out"


def write_record_before_reboot(worker: ClockedWorker, ago: float) -> None:
    """Write the record of a job that was being prepared when its machine was rebooted."""
    began = datetime.now(UTC) - timedelta(seconds=ago)
    record = {"job": "20260101-000000-acorn", "attempt": 1, "worker": 0, "state": "preparing"}
    record |= {"exit_code": None, "signal": None, "restarts": 0, "started": began.isoformat()}
    record |= {"finished": None, "log_bytes": None, "cause": "", "detail": "", "log_uploaded": None}
    # An uptime of the previous boot, which cannot be compared with this boot's.
    clock = {"boot_id": "00000000-0000-0000-0000-000000000000", "start_uptime": 1e9}
    (worker.folder / "record.json").write_text(json.dumps({**record, "clock": clock}))


def test_time_before_reboot_counts(worker: ClockedWorker) -> None:
    worker.write_spec(GATED, max_seconds=HOUR)
    write_record_before_reboot(worker, ago=2 * HOUR)
    assert worker.follow()[1].state == "timed_out"


def test_reboot_does_not_end_job_that_can_still_start(worker: ClockedWorker) -> None:
    worker.write_spec("print('began')", max_seconds=HOUR)
    write_record_before_reboot(worker, ago=60)
    log, record = worker.follow()
    assert (log, record.state) == (b"began\n", "succeeded")
