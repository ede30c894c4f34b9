"""A worker that does not arrive at the start is reported within a minute, with the reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.forked_cli import run_tpuctl
from tests.support.recovery_jobs import log_of, script
from tpuctl.api import Tpuctl
from tpuctl.jobs import launch
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import Event
from tpuctl.model.jobs.job import JobRecord

MakeStack = Callable[..., Tpuctl]
# On the worker in the argument, something else happens before the processes find each other.
SCRIPT = """
import os, sys, time

def load_data():
    time.sleep(600)

import jax

print("imported", flush=True)
worker, what = os.environ["TPUCTL_WORKER"], sys.argv[2]
if worker == sys.argv[1]:
    load_data() if what == "sleep" else sys.exit(0)
jax.distributed.initialize()
print("all", jax.process_count(), flush=True)
time.sleep(600)
"""


async def log_until(stack: Tpuctl, events: list[Event], arguments: list[str], text: str) -> str:
    """The log of a new job's worker 0 once it contains the text."""
    events.clear()
    record = await stack.submit(script(stack, SCRIPT), arguments, check=False)
    following = asyncio.ensure_future(stack.follow(record))
    try:
        async with asyncio.timeout(300):
            while text not in log_of(events, 1):
                assert not following.done(), events
                await asyncio.sleep(0.1)
        return log_of(events, 1)
    finally:
        following.cancel()
        await stack.stop(record, grace=0.0)


def check_after(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    original = launch._start_barrier

    def check_soon(record: JobRecord, settings: launch.Launch) -> dict[str, Any]:
        return {**original(record, settings), "check_seconds": seconds}

    monkeypatch.setattr(launch, "_start_barrier", check_soon)


@pytest.mark.soak
async def test_late_worker_is_reported_with_reason(
    make_stack: MakeStack,
    local_cloud: LocalCloud,
    events: list[Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_after(monkeypatch, 15.0)
    stack = make_stack(
        type_name="v3-32",
        zone="europe-west4-a",
        extra="job: {workers: all, requirements: requirements.txt}\n",
    )
    (stack.stack_file.parent / "requirements.txt").write_text("jax==0.6.2\nrequests\n", "utf-8")
    await stack.up()

    log = await log_until(stack, events, ["0", "sleep"], "has not arrived")
    assert "tpuctl: worker 0 has not arrived: the others wait for it; its script is at " in log
    assert "in load_data" in log

    change = (
        "sed -i 's/^Version: .*/Version: 0.9.0/' .tpuctl/envs/*/lib/*/*/jaxlib-*.dist-info/METADATA"
    )
    done = await asyncio.to_thread(
        run_tpuctl, "ssh", "2", "--", change, folder=stack.stack_file.parent
    )
    assert done.returncode == 0, done.stderr
    log = await log_until(stack, events, ["2", "sleep"], "has not arrived")
    reason = (
        "worker 2 has not arrived: its script is at line 5 of job.py, in load_data; "
        "it has jaxlib 0.9.0 instead of 0.6.2\n"
    )
    assert f"tpuctl: {reason}" in log
    assert "worker 1 has" not in log

    log = await log_until(stack, events, ["3", "end"], "has not arrived")
    assert "tpuctl: worker 3 has not arrived: its script has ended with exit code 0\n" in log

    log = await log_until(stack, events, ["", ""], "all 4")
    assert "arrived" not in log

    if local_cloud.runs_startup_scripts:  # firewall rules apply between machines
        tag, name = stack.stack.names.tag, f"{stack.stack.name}-closed"
        rule = {
            "name": name,
            "network": "global/networks/default",
            "priority": 1,
            "denied": [{"I_p_protocol": "tcp"}],
            "source_tags": [tag],
            "target_tags": [tag],
        }
        client, project = stack.cloud.client("firewalls"), stack.stack.project
        await stack.cloud.call("deny", client.insert_unary, firewall_resource=rule, project=project)
        log = await log_until(stack, events, ["", ""], "worker 3 has not arrived")  # the last one
        dropped = "its connections to worker 0, port 8482, are not answered"
        for worker in (1, 2, 3):
            assert f"tpuctl: worker {worker} has not arrived: {dropped}" in log
        assert f"tpuctl up creates rule {stack.stack.names.worker_rule}" in log
        await stack.cloud.call("allow", client.delete_unary, firewall=name, project=project)
    await stack.down(delete_bucket=True)


@pytest.mark.soak
async def test_worker_that_is_not_ready_is_reported_with_its_activity(
    make_stack: MakeStack, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_after(monkeypatch, 8.0)
    stack = make_stack(
        type_name="v3-32",
        zone="europe-west4-a",
        extra="job: {workers: all, setup: 'test $TPUCTL_WORKER != 2 || sleep 600'}\n",
    )
    await stack.up()
    log = await log_until(stack, events, ["", ""], "waiting for worker")
    assert "tpuctl: waiting for worker 2: running the setup command\n" in log
    assert "worker 1" not in log
    await stack.down(delete_bucket=True)
