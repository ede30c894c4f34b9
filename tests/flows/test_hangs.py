"""Jobs that stop making progress: reported on every worker, and by `status` and `explain`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from tests.support.forked_cli import run_tpuctl
from tests.support.recovery_jobs import script
from tpuctl.api import Tpuctl
from tpuctl.flows.jobs.attempts import read_attempts
from tpuctl.model.events import Event
from tpuctl.model.jobs.job import JobRecord

MakeStack = Callable[..., Tpuctl]
# Worker 0 waits for the others, which wait for nothing, in the first attempt.
SCRIPT = """
import os, time

def wait_for_peers():
    time.sleep(600)

def wait_for_batch():
    time.sleep(600)

if os.environ["TPUCTL_ATTEMPT"] == "1":
    wait_for_peers() if os.environ["TPUCTL_WORKER"] == "0" else wait_for_batch()
print("done")
"""


async def wait_for_hangs(stack: Tpuctl, record: JobRecord) -> None:
    async with asyncio.timeout(90):
        while set((await stack.explain(record)).hangs) != {*record.workers}:
            await asyncio.sleep(0.2)


async def test_hang_is_explained_and_shown_in_status(make_stack: MakeStack) -> None:
    stack = make_stack(extra="job: {limits: {hang: 1s}}\n")
    await stack.up()
    record = await stack.submit(script(stack, SCRIPT))
    await wait_for_hangs(stack, record)
    folder = stack.stack_file.parent
    done = await asyncio.to_thread(run_tpuctl, "explain", folder=folder)
    assert f"{record.id}: job.py\n" in done.stdout
    assert "Worker 0 may hang: no output for " in done.stdout
    assert "line 5 in wait_for_peers\n" in done.stdout
    done = await asyncio.to_thread(run_tpuctl, "explain", "--json", folder=folder)
    assert "wait_for_peers" in json.loads(done.stdout)["data"]["hangs"]["0"]["stack"][0]
    done = await asyncio.to_thread(run_tpuctl, "status", folder=folder)
    assert "may hang (see tpuctl explain)" in done.stdout
    assert (await stack.stop(record)).state == "stopped", "a report does not end the job"
    assert (await stack.down(delete_bucket=True)).leaks == ()


@pytest.mark.soak
async def test_all_workers_report_stacks_and_restart(
    make_stack: MakeStack, events: list[Event]
) -> None:
    stack = make_stack(
        type_name="v3-32",
        zone="europe-west4-a",
        extra="job: {limits: {hang: 5s, on_hang: restart}}\n",
    )
    await stack.up()
    text = SCRIPT.replace("def wait_for_batch():\n", "def wait_for_batch():\n    print_always()\n")
    printing = "def print_always():\n    while True: print('waiting', flush=True); time.sleep(1)\n"
    record = await stack.submit(script(stack, printing + text), check=False)
    following = asyncio.ensure_future(stack.follow(record))
    await wait_for_hangs(stack, record)
    for worker in record.workers:
        log = (await stack.store.get_bytes(record.log_name(worker))).decode()
        assert ("in wait_for_peers" if worker == 0 else "in print_always") in log
    assert await asyncio.wait_for(following, 240) == 0
    (attempt,) = await read_attempts(stack.store, record)
    assert (attempt.verdict.kind, attempt.verdict.name) == ("infrastructure", "hang")
    assert (await stack.down(delete_bucket=True)).leaks == ()
