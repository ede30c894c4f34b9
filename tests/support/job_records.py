"""Records of jobs, with the fields that a test names."""

from __future__ import annotations

from datetime import UTC, datetime

from tpuctl.model.jobs.job import JobRecord

PLACE = {"stack": "bert", "project": "my-project", "zone": "us-central1-b", "node": "bert-tpu"}


def job_record(**more: object) -> JobRecord:
    """A job of one worker: `train.py` in the stack `bert`."""
    fields = {
        **PLACE,
        "id": "20260304-120000-acorn",
        "bucket": "b",
        "script": "train.py",
        "bundle": "0" * 64,
        "worker_count": 1,
        "workers": (0,),
        "submitted": datetime(2026, 3, 4, 12, tzinfo=UTC),
    }
    return JobRecord.model_validate(fields | more)
