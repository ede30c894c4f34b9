"""A program that runs a stack's queue is killed after any call of the cloud: the next one goes on.
The job is started once, its machines are one TPU, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tpuctl.api import Tpuctl
from tpuctl.flows.jobs import recover
from tpuctl.flows.machines.workers import list_nodes
from tpuctl.flows.queue.enqueue import append_jobs
from tpuctl.model.jobs.job import JobRecord
from tpuctl.model.jobs.queue import Queued

MakeStack = Callable[..., Tpuctl]
pytestmark = pytest.mark.long
POINTS, PARTS = 200, 20
# Arguments: a stack file, and after which call it is killed: its number, or its method and subject,
# after others in lines above. Prints how many there were.
PROGRAM = """
import asyncio, os, signal, sys
from tpuctl.api import Tpuctl
tpuctl = Tpuctl(sys.argv[1], cloud="local")
calls, wanted = [], sys.argv[2].splitlines()
def count(call):
    calls.append(call)
    if wanted[0] in (str(len(calls)), f"{call.method} {call.subject}"):
        wanted.pop(0)
        if not wanted:
            os.kill(os.getpid(), signal.SIGKILL)
tpuctl.record_call = count
asyncio.run(tpuctl.run_queue())
print(len(calls))
"""
SCRIPT = "import os\nprint('started in attempt', os.environ['TPUCTL_ATTEMPT'], flush=True)\n"


async def run_queue(stack: Tpuctl, last: int | str) -> int:
    """Run the queue in a program that is killed after a call, if it makes it; return how many it
    made, 0 if it was killed."""
    argv = [sys.executable, "-c", PROGRAM, str(stack.stack_file), str(last)]
    run = asyncio.to_thread(
        subprocess.run, argv, env=dict(os.environ), stdout=subprocess.PIPE, timeout=240
    )
    done = await run
    if done.returncode == -signal.SIGKILL:
        return 0
    assert done.returncode == 0
    return int(done.stdout)


def writes(stack: Tpuctl, *names: str) -> str:
    """Calls that write objects, one after another."""
    return "\n".join(f"ObjectStore.put_bytes {stack.store.uri(name)}" for name in names)


async def append(stack: Tpuctl, folder: Path) -> JobRecord:
    """A job that is in the queue of a stack of which only the bucket exists."""
    script = folder / "job" / "job.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text(SCRIPT, "utf-8")
    submission = stack.submission(script, check=False)
    (record,) = await append_jobs(stack.context, submission, (), Queued(down=True))
    return record


async def check_killed_at(stack: Tpuctl, folder: Path, calls: int) -> bool:
    """Whether it was killed after so many calls: otherwise it makes fewer."""
    record = await append(stack, folder)
    was_killed = await run_queue(stack, calls) == 0
    assert len(await list_nodes(stack.cloud, stack.stack)) <= 1
    if was_killed:
        await run_queue(stack, 0)
    await check_ran_once(stack, record, (calls, was_killed))
    return was_killed


async def check_ran_once(stack: Tpuctl, record: JobRecord, case: object = "") -> None:
    (job,) = [job for job in await stack.jobs() if job.record.id == record.id]
    outcome = (job.status.state, job.status.exit_code)
    assert outcome == ("succeeded", 0), (case, job.status.detail, job.attempts)
    logs = [
        (await stack.store.get_bytes(item.name)).decode()
        for item in await stack.store.list(f"{record.prefix}/attempts/")
        if item.name.endswith("worker-0.log")
    ]
    assert "".join(logs) == f"started in attempt {job.record.attempt}\n", "it was started once"
    status = await stack.status()
    left = [(item.kind, item.state) for item in status.inventory if item.kind != "bucket"]
    assert not left, (case, "the stack is taken down")


@pytest.fixture
async def stack(make_stack: MakeStack) -> Tpuctl:
    stack = make_stack(runtime="tpu-ubuntu2204-base, capacity: spot")
    await stack.up()  # for the bucket
    await stack.down()
    return stack


async def test_killed_program_is_followed_by_another(stack: Tpuctl, tmp_path: Path) -> None:
    await append(stack, tmp_path)
    calls = await run_queue(stack, 0)
    await check_killed_at(stack, tmp_path, random.randrange(1, calls))
    assert (await stack.down(delete_bucket=True)).leaks == ()


async def test_claimed_start_is_followed_by_another_attempt(
    stack: Tpuctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recover, "START_SECONDS", 1.0)
    record = await append(stack, tmp_path)
    assert await run_queue(stack, writes(stack, record.start_name)) == 0
    await stack.run_queue()
    await check_ran_once(stack, record)


async def test_down_that_has_begun_is_finished(stack: Tpuctl, tmp_path: Path) -> None:
    record = await append(stack, tmp_path)
    assert await run_queue(stack, writes(stack, record.final_name, stack.stack.names.record)) == 0
    assert await stack.run_queue() == 0
    await check_ran_once(stack, record)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
async def test_killed_at_each_point(stack: Tpuctl, tmp_path: Path, part: int) -> None:
    await append(stack, tmp_path)
    calls = await run_queue(stack, 0)
    points = sorted({1 + number * calls // POINTS for number in range(part, POINTS, PARTS)})
    killed = [await check_killed_at(stack, tmp_path, point) for point in points]
    assert sum(killed) > len(points) // 2
    assert (await stack.down(delete_bucket=True)).leaks == ()
