"""A second job on a busy TPU, and which job is meant if none is named."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.support.forked_cli import run_tpuctl
from tests.support.polling import async_until
from tests.support.recovery_jobs import log_of
from tests.support.terminal import Terminal
from tpuctl.api import Tpuctl
from tpuctl.errors import Conflict
from tpuctl.flows.jobs.job_start import submit
from tpuctl.flows.jobs.submission import Submission, bind_to_nodes
from tpuctl.flows.machines.workers import ordered_nodes
from tpuctl.model.events import Event, ignore
from tpuctl.model.jobs.job import JobRecord

SLOW_TO_STOP = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("began", flush=True)
time.sleep(600)
"""
ENDLESS = "import time\nprint('began', flush=True)\ntime.sleep(600)\n"


@pytest.fixture
async def stack(make_stack: Callable[..., Tpuctl]) -> Tpuctl:
    """A running stack, with two scripts next to its file."""
    stack = make_stack()
    folder = stack.stack_file.parent
    (folder / "endless.py").write_text(ENDLESS)
    (folder / "short.py").write_text("print('short')\n")
    await stack.up()
    return stack


async def submit_anyway(stack: Tpuctl, script: str) -> JobRecord:
    """Start a job whatever else runs, as another user's older program would."""
    nodes = await ordered_nodes(stack.context)
    planned = Submission.of(stack.stack, stack.stack_file.parent / script, cloud="local")
    planned = await bind_to_nodes(planned, stack.stack, stack.cloud, nodes)
    async with stack.connections() as transports:
        return await submit(planned, stack.store, transports, ignore)


async def test_second_job_waits_or_is_refused(stack: Tpuctl) -> None:
    folder = stack.stack_file.parent
    first = await stack.submit(folder / "endless.py", check=False)

    async def tpuctl(*arguments: str) -> tuple[int, str, str]:
        done = await asyncio.to_thread(run_tpuctl, *arguments, folder=folder)
        return done.returncode, done.stdout, done.stderr

    # Not even with --down, which would take the other job's machines away.
    code, _, errors = await tpuctl("run", "--down", "short.py")
    assert code == 1
    assert f"{first.id}: endless.py, since {first.submitted:%H:%M} UTC" in " ".join(errors.split())
    assert "--wait" in errors
    assert f"tpuctl stop {first.id}" in errors
    with pytest.raises(Conflict, match="TPU in use"):
        await stack.submit(folder / "short.py")
    assert [job.record.id for job in await stack.jobs()] == [first.id]

    with Terminal(folder, "run", "short.py") as terminal:
        await asyncio.to_thread(terminal.wait_for, "Wait until this one has ended?")
        terminal.type("n\n")
        assert await asyncio.to_thread(terminal.end) == 1

    waiting = asyncio.ensure_future(tpuctl("run", "--wait", "short.py"))
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 2)
    assert not waiting.done()
    await stack.stop(first, grace=1)
    code, output, errors = await waiting
    assert (code, output) == (0, "short\n"), errors
    assert f"{first.id} has ended" in errors


async def test_job_that_is_being_stopped_is_waited_for(stack: Tpuctl, events: list[Event]) -> None:
    folder = stack.stack_file.parent
    (folder / "slow.py").write_text(SLOW_TO_STOP)
    first = await stack.submit(folder / "slow.py", check=False)
    following = asyncio.ensure_future(stack.follow(first))
    await async_until(lambda: "began" in log_of(events, 1), "the script being deaf")
    stopping = asyncio.ensure_future(stack.stop(first, grace=3))
    await async_until(lambda: stack.store.exists(first.stop_name), "the request to stop")
    second = await stack.submit(folder / "short.py", check=False)
    assert (await stopping).state == "stopped"
    assert await stack.follow(second) == 0
    await following


async def test_job_that_is_meant(stack: Tpuctl) -> None:
    folder = stack.stack_file.parent
    old = await stack.submit(folder / "short.py")
    assert await stack.follow(old) == 0
    assert (await stack.job()).id == old.id, "the latest one, as none is running"
    running = await stack.submit(folder / "endless.py", check=False)
    latest = await submit_anyway(stack, "short.py")
    assert await stack.follow(latest) == 0
    words = [record.id.rpartition("-")[2] for record in (old, running, latest)]
    assert len({*words}) == 3

    async def has_begun() -> bool | None:
        summaries = {job.record.id: job.status.state for job in await stack.jobs()}
        return (summaries[running.id] == "running" and summaries[latest.id] == "succeeded") or None

    await async_until(has_begun, "the bucket having the jobs' states")

    def job_of(*arguments: str) -> str:
        done = run_tpuctl("--json", *arguments, folder=folder)
        return str(json.loads(done.stdout)["data"]["job"])

    assert await asyncio.to_thread(job_of, "logs") == running.id

    second = await submit_anyway(stack, "endless.py")
    refused = await asyncio.to_thread(run_tpuctl, "wait", folder=folder)
    assert refused.returncode == 1
    assert "Several jobs are running" in refused.stderr
    assert all(f"{record.id}: endless.py" in refused.stderr for record in (running, second))
    assert latest.id not in refused.stderr
    with Terminal(folder, "stop") as terminal:
        await asyncio.to_thread(terminal.wait_for, "Number")
        assert f"1  {second.id}" in terminal.output
        assert f"2  {running.id}" in terminal.output
        terminal.type("3\n")
        await asyncio.to_thread(terminal.wait_for, "not a number from 1 to 2")
        terminal.type("2\n")
        assert await asyncio.to_thread(terminal.end) == 0
    states = {job.record.id: job.status.state for job in await stack.jobs()}
    assert states[running.id] == "stopped"
    assert (await stack.job()).id == second.id
    await stack.stop(second, grace=1)


@pytest.mark.soak
async def test_each_command_takes_the_job_that_is_meant(stack: Tpuctl) -> None:
    folder = stack.stack_file.parent
    running = await stack.submit(folder / "endless.py", check=False)
    ended = await submit_anyway(stack, "short.py")
    assert await stack.follow(ended) == 0
    for command in (("logs",), ("explain",), ("jobs", "show"), ("report",)):
        done = await asyncio.to_thread(run_tpuctl, "--json", *command, folder=folder)
        assert json.loads(done.stdout)["data"]["job"] == running.id, command
    for command in (("wait", "--timeout", "1s"), ("profile", "1")):
        done = await asyncio.to_thread(run_tpuctl, *command, folder=folder)
        assert done.returncode != 0
        assert ended.id not in done.stderr, command
    second = await submit_anyway(stack, "endless.py")
    for command in (("stop",), ("wait",), ("logs", "-f"), ("profile",), ("explain",)):
        refused = await asyncio.to_thread(run_tpuctl, *command, folder=folder)
        assert refused.returncode == 1, command
        assert "Several jobs are running" in refused.stderr
    await asyncio.gather(stack.stop(running, grace=1), stack.stop(second, grace=1))
