"""The environment variables of a script, for each kind of node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.job_records import job_record
from tests.support.stacks import bert_stack
from tpuctl.flows.jobs.submission import Submission, worker_environment
from tpuctl.model.jobs.job import JobRecord


def record_of(submission: Submission) -> JobRecord:
    machines, workers = submission.machines, submission.workers
    more = {"worker_count": submission.worker_count, "workers": workers, "script": "job.py"}
    return job_record(zone=machines.zone, node=machines.node, **more)


@pytest.mark.parametrize(
    ("tpu", "workers", "node", "load"),
    [
        # A single worker detects its chips itself, under this name.
        ("type: v3-8, zones: [europe-west4-a]", (0,), "local", None),
        # TensorFlow controls a slice from worker 0, by its node's name.
        ("type: v3-32, zones: [europe-west4-a]", (0,), "bert-tpu", "0"),
        # Other runtimes start on every worker.
        (
            "type: v3-32, zones: [europe-west4-a], runtime: tpu-ubuntu2204-base",
            (0, 1, 2, 3),
            "bert-tpu",
            None,
        ),
    ],
)
def test_worker_environment_of_runtime(
    tmp_path: Path, tpu: str, workers: tuple[int, ...], node: str, load: str | None
) -> None:
    submission = Submission.of(bert_stack(tmp_path, f"tpu: {{{tpu}}}"), tmp_path / "job.py")
    assert submission.workers == workers
    record = record_of(submission)
    variables = worker_environment(submission, record, workers[-1])
    assert variables["TPU_NAME"] == node
    assert variables.get("TPU_LOAD_LIBRARY") == load
    assert variables["TPUCTL_WORKER"] == str(workers[-1])
    assert variables["TPUCTL_WORKERS"] == ("1" if node == "local" else "4")


@pytest.mark.parametrize(
    ("framework", "type_name", "index"),
    [("torch", "v6e-16", "3"), ("torch", "v6e-4", None), ("jax", "v6e-16", None)],
)
def test_machines_of_torch_tpu_have_their_rank(
    tmp_path: Path, framework: str, type_name: str, index: str | None
) -> None:
    """`set_tpu_launch_env()` of torch-tpu takes an index to mean several hosts."""
    tpu = f"tpu: {{api: compute, type: {type_name}, zones: [us-east5-b]}}"
    stack = bert_stack(tmp_path, f"{tpu}\njob: {{framework: {framework}}}")
    submission = Submission.of(stack, tmp_path / "job.py")
    submission = replace(submission, machines=replace(submission.machines, topology="4x4"))
    variables = worker_environment(submission, record_of(submission), submission.workers[-1])
    assert variables.get("JOB_COMPLETION_INDEX") == index


@pytest.mark.parametrize(
    ("runtime", "endpoints", "expected"),
    [
        (
            "2.12.0",
            ("10.240.0.2:8470",),
            {"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://10.240.0.2:8470"},
        ),
        (
            "2.12.0",
            ("10.240.0.2:8470", "10.240.0.3:8470"),
            {"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://10.240.0.2:8470,grpc://10.240.0.3:8470"},
        ),
        (
            "pytorch-1.13",
            ("10.240.0.2:8470",),
            {"TPU_IP_ADDRESS": "10.240.0.2", "XRT_TPU_CONFIG": "tpu_worker;0;10.240.0.2:8470"},
        ),
    ],
)
def test_tpu_node_job_runs_on_controller_with_node_address(
    tmp_path: Path, runtime: str, endpoints: tuple[str, ...], expected: dict[str, str]
) -> None:
    submission = Submission.of(
        bert_stack(
            tmp_path,
            f"tpu: {{kind: node, type: v3-32, runtime: {runtime}, zones: [europe-west4-a]}}",
        ),
        tmp_path / "job.py",
    )
    submission = replace(submission, machines=replace(submission.machines, endpoints=endpoints))
    assert submission.workers == (0,)
    variables = worker_environment(submission, record_of(submission), 0)
    assert variables["TPU_NAME"] == "bert-tpu"
    assert variables["TPUCTL_WORKERS"] == "1"
    about_the_node = {"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_IP_ADDRESS", "XRT_TPU_CONFIG"}
    assert {name: variables[name] for name in about_the_node & variables.keys()} == expected
