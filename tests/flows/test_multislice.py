"""Several slices that run one job: on all or none, with names and an environment of their own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_cli import run_tpuctl
from tests.support.polling import async_until
from tests.support.recovery_jobs import inject_fault, notes
from tests.support.stack_jobs import write_script
from tpuctl.api import Tpuctl
from tpuctl.errors import Usage
from tpuctl.flows.jobs.run import prepare
from tpuctl.flows.jobs.submission import Submission
from tpuctl.flows.machines.workers import nodes_of
from tpuctl.flows.preflight.rehearse import job_variables
from tpuctl.jobs.logs import worker_records
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.cost.stack_cost import cost_of
from tpuctl.model.events import Event, JobEnded, LogChunk

MakeStack = Callable[..., Tpuctl]
V5E_ZONE = "us-east1-b"
MEGASCALE = ("COORDINATOR_ADDRESS", "NUM_SLICES", "SLICE_ID", "PORT")
NAMES = ("TPUCTL_WORKER", "TPUCTL_WORKERS", "TPUCTL_SLICE", "TPUCTL_SLICES", "TPU_NAME")
REPORT = f"""
import os
print(*(os.environ.get(name, "-") for name in {NAMES}),
      *(os.environ.get("MEGASCALE_" + name, "-") or "none" for name in {MEGASCALE}))
"""
# Fails on slice 1, while slice 0 waits for it.
FAILS = """
import os, sys, time
if os.environ["TPUCTL_SLICE"] == "1":
    sys.exit(3)
time.sleep(600)
"""
# Waits on the first attempt until it is stopped, and succeeds on the second.
RESUMES = """
import os, time
print("began", flush=True)
if os.environ["TPUCTL_ATTEMPT"] == "1":
    time.sleep(600)
"""


@pytest.fixture
def make_slices(make_stack: MakeStack) -> MakeStack:
    def make(
        type_name: str = "v5litepod-8",
        fields: str = "slices: 2",
        extra: str = "",
        runtime: str = "v2-alpha-tpuv5-lite",
    ) -> Tpuctl:
        fields = f"{runtime}, {fields}"
        return make_stack(type_name=type_name, runtime=fields, zone=V5E_ZONE, extra=extra)

    return make


def logged(events: list[Event], attempt: int = 1) -> list[str]:
    chunks = [event for event in events if isinstance(event, LogChunk) and event.attempt == attempt]
    return sorted(b"".join(chunk.data for chunk in chunks).decode().splitlines())


async def test_job_runs_on_all_slices(make_slices: MakeStack, events: list[Event]) -> None:
    stack = make_slices()
    await stack.up()
    assert (await stack.up()).plan.is_empty
    coordinator = f"{(await stack.node()).inner_addresses[0]}:8081"
    record = await stack.submit(write_script(stack, REPORT))
    assert (record.slices, record.workers) == (2, (0, 1))
    assert await stack.follow(record, all_workers=True) == 0
    assert logged(events) == [
        f"[worker 0.0] 0 2 0 2 local {coordinator} 2 0 8081",
        f"[worker 1.0] 1 2 1 2 local {coordinator} 2 1 8081",
    ]
    chunks = [event for event in events if isinstance(event, LogChunk)]
    assert {(chunk.worker, chunk.slice) for chunk in chunks} == {(0, 0), (1, 1)}

    record = await stack.submit(write_script(stack, FAILS))
    assert await stack.follow(record) == 3
    assert "worker 1.0 ended: the script failed with exit code 3" in notes(events)
    ended = [event for event in events if isinstance(event, JobEnded)][-1]
    assert (ended.worker, ended.slice) == (1, 1)
    workers = await worker_records(stack.store, record)
    assert workers[0].detail == "worker 1.0 ended first"
    await stack.down(delete_bucket=True)


async def test_independent_nodes_of_a_request_are_no_slices(
    make_slices: MakeStack, events: list[Event]
) -> None:
    stack = make_slices(fields="queue: {nodes: 2}")
    await stack.up()
    assert (
        await stack.follow(await stack.submit(write_script(stack, REPORT)), all_workers=True) == 0
    )
    assert logged(events) == [
        "[worker 0] 0 2 - - local none none none none",
        "[worker 1] 1 2 - - local none none none none",
    ]
    await stack.down(delete_bucket=True)


async def test_workers_are_named_by_slice(
    make_slices: MakeStack, tmp_path: Path, events: list[Event]
) -> None:
    stack = make_slices(type_name="v5litepod-16")
    await stack.up()

    async def run(*words: str) -> str:
        result = await asyncio.to_thread(run_tpuctl, *words, folder=stack.stack_file.parent)
        assert result.returncode == 0, result.stderr
        return result.stdout

    async def answer(*words: str) -> Any:
        return json.loads(await run("--json", *words))["data"]

    lines = await run("ssh", "--all-workers", "--", "echo text > file; echo done")
    assert sorted(lines.splitlines()) == [
        f"[worker {index}.{worker}] done" for index in (0, 1) for worker in range(4)
    ]
    for name in ("1.2", "6"):
        data = await answer("ssh", name, "--", "true")
        assert data == {"workers": [{"worker": 6, "slice": 1, "exit_code": 0}]}
    data = await answer("cp", "1.2:file", str(tmp_path))
    assert data == {"workers": [{"worker": 6, "slice": 1, "files": 1, "bytes": 5}]}
    await run("cp", "--all-workers", ":file", str(tmp_path))
    folders = {path.parent.name for path in tmp_path.glob("worker-*/file")}
    assert {"worker-0.0", "worker-1.3"} <= folders and len(folders) == 8

    address = (await stack.transports())[4].address.host
    assert f"1.0 {address}" in await run("status")
    assert [node["slice"] for node in (await answer("status"))["nodes"]] == [0, 1]
    hosts = await stack.ssh_hosts()
    assert hosts[7].name == f"{stack.stack.name}-1.3"
    await stack.down(delete_bucket=True)


async def test_lost_slice_restarts_job_on_all(
    make_slices: MakeStack, reset_cloud: LocalCloud, events: list[Event]
) -> None:
    stack = make_slices(fields="slices: 2, capacity: spot")
    await stack.up()
    record = await stack.submit(write_script(stack, RESUMES))
    following = asyncio.ensure_future(stack.follow(record, all_workers=True))
    await async_until(lambda: len(logged(events)) == 2, "the start on both slices")
    await inject_fault(reset_cloud, "preempt", node=stack.stack.nodes[1])
    assert await asyncio.wait_for(following, 300) == 0
    assert logged(events, attempt=2) == ["[worker 0.0] began", "[worker 1.0] began"]
    assert "retries left: preemption 9" in notes(events)
    assert "recreating the request with its 2 nodes, which is SUSPEND" in notes(events)
    await stack.down(delete_bucket=True)


@pytest.mark.parametrize(
    "type_name", ["v6e-4", pytest.param("v6e-16", marks=pytest.mark.soak)], ids=str
)
async def test_compute_engine_creates_lost_slice_alone(
    make_stack: MakeStack, reset_cloud: LocalCloud, events: list[Event], type_name: str
) -> None:
    """One instance, or one managed group, a slice."""
    fields = "auto, api: compute, slices: 2, capacity: spot"
    stack = make_stack(type_name=type_name, runtime=fields, zone="us-east5-b")
    await stack.up()
    before = await nodes_of(stack.stack, stack.cloud)
    record = await stack.submit(write_script(stack, RESUMES), check=False)
    following = asyncio.ensure_future(stack.follow(record, all_workers=True))
    workers = len(record.workers)
    await async_until(lambda: len(logged(events)) == workers, "the start on both slices")
    await inject_fault(reset_cloud, "preempt", node=before[1].instances[-1])
    assert await asyncio.wait_for(following, 300) == 0
    assert len(logged(events, attempt=2)) == workers
    after = await nodes_of(stack.stack, stack.cloud)
    assert [new.id == old.id for new, old in zip(after, before, strict=True)] == [True, False]
    assert "retries left: preemption 9" in notes(events)
    assert f"/{before[1].name}: " in notes(events), "says what is created again"
    await stack.down(delete_bucket=True)


def test_cost_is_that_of_all_slices(make_slices: MakeStack) -> None:
    single, double = (cost_of(make_slices(fields=f"slices: {count}").stack) for count in (1, 2))
    assert double.lines[0].item.startswith("2 nodes v5litepod-8")
    assert double.lines[0].per_hour == pytest.approx(2 * (single.lines[0].per_hour or 0))


def test_rehearsal_has_variables_of_slice_0(make_slices: MakeStack) -> None:
    submission = Submission.of(make_slices().stack, None, program="train.py")
    variables = job_variables(submission, "name", "train.py", "gs://bucket/output")
    assert (variables["TPUCTL_SLICE"], variables["TPUCTL_SLICES"]) == ("0", "2")
    assert variables["MEGASCALE_COORDINATOR_ADDRESS"] == "127.0.0.1:8081"


@pytest.mark.parametrize(
    ("text", "fields", "says"),
    [
        (
            "import jax",
            "workers: [0]",
            "job.workers selects 0.0; 2 slices",
        ),
        ("import tensorflow", "workers: auto", "the job uses TensorFlow (job.py)"),
    ],
)
def test_job_that_cannot_use_all_slices_is_refused(
    make_slices: MakeStack, text: str, fields: str, says: str
) -> None:
    stack = make_slices(extra=f"job: {{{fields}}}\n", runtime="auto")
    with pytest.raises(Usage) as refused:
        prepare(stack.stack, write_script(stack, text), cloud="local", emit=print)
    assert says in refused.value.diagnostics[0].detail


def test_job_of_unknown_framework_is_on_all_workers(make_slices: MakeStack) -> None:
    stack = make_slices(runtime="auto")
    assert prepare(stack.stack, "true", cloud="local", emit=print, form="shell").workers == (0, 1)
