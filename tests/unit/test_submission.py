"""What a script is told about where it runs, for each kind of node."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tpuctl.flows.submit import Submission, worker_environment
from tpuctl.model.job import JobRecord
from tpuctl.model.stack import load_stack


@pytest.mark.parametrize(
    ("tpu", "workers", "node", "load"),
    [
        # One worker looks its chips up by itself, under this name.
        ("type: v3-8, zones: [europe-west4-a]", (0,), "local", None),
        # TensorFlow drives a slice from worker 0, through its node's name.
        ("type: v3-32, zones: [europe-west4-a]", (0,), "bert-tpu", "0"),
        # Whatever else is started on every worker.
        (
            "type: v3-32, zones: [europe-west4-a], runtime: tpu-ubuntu2204-base",
            (0, 1, 2, 3),
            "bert-tpu",
            None,
        ),
    ],
)
def test_the_environment_follows_the_runtime(
    tmp_path: Path, tpu: str, workers: tuple[int, ...], node: str, load: str | None
) -> None:
    path = tmp_path / "tpuctl.yaml"
    path.write_text(f"stack: bert\nproject: {{id: my-project}}\ntpu: {{{tpu}}}\n", "utf-8")
    submission = Submission.of(load_stack(path), tmp_path / "job.py")
    assert submission.workers == workers
    record = JobRecord(
        id="20260304-120000-acorn",
        stack="bert",
        project="my-project",
        zone=submission.zone,
        node=submission.node,
        bucket="b",
        script="job.py",
        bundle="0" * 64,
        worker_count=submission.worker_count,
        workers=workers,
        submitted=datetime(2026, 3, 4, 12, tzinfo=UTC),
    )
    found = worker_environment(submission, record, workers[-1])
    assert found["TPU_NAME"] == node
    assert found.get("TPU_LOAD_LIBRARY") == load
    assert found["TPUCTL_WORKER"] == str(workers[-1])
    assert found["TPUCTL_WORKERS"] == ("1" if node == "local" else "4")
