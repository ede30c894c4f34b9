"""The fork server of machines' init processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.polling import async_until
from tpuctl.emulator.machines.isolation.fork_server import ForkServer
from tpuctl.emulator.machines.programs.processes import Init

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="fork server requires Linux")
ENVIRONMENT = {"PATH": os.defpath}


@pytest.fixture
async def fork_server() -> AsyncIterator[ForkServer]:
    made = ForkServer()
    yield made
    await made.close()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[1])


async def run(init: Init, command: str) -> int:
    null = os.open(os.devnull, os.O_RDWR)
    try:
        argv = ["/bin/sh", "-c", command]
        started = await init.spawn(argv, env=ENVIRONMENT, cwd="/", files=(null, null, null))
    finally:
        os.close(null)
    return (await asyncio.wait_for(started.exit, 20)).code


async def test_concurrent_machines_share_one_fork_server(fork_server: ForkServer) -> None:
    machines = await asyncio.gather(*(Init.start(None, fork_server) for _ in range(8)))
    parents = {parent_of(machine.pid) for machine in machines}
    assert len(parents) == 1
    assert parents != {os.getpid()}
    codes = await asyncio.gather(
        *(run(machine, f"exit {code}") for code, machine in enumerate(machines))
    )
    assert codes == list(range(8))
    sessions = {os.getsid(machine.pid) for machine in machines}
    assert len(sessions) == 8, "each has a separate process group"
    await asyncio.gather(*(machine.stop(0) for machine in machines))
    assert all(machine.ended.is_set() for machine in machines)
    for stopped in machines:
        assert not Path(f"/proc/{stopped.pid}").exists(), "it was not reaped"


async def test_process_end_is_detected(fork_server: ForkServer) -> None:
    first, second = [await Init.start(None, fork_server) for _ in range(2)]
    os.kill(first.pid, signal.SIGKILL)
    await asyncio.wait_for(first.ended.wait(), 20)
    assert await run(second, "exit 3") == 3
    await first.stop(0)
    await second.stop(0)


async def test_fork_server_is_restarted_after_it_ended(
    fork_server: ForkServer,
) -> None:
    first = await Init.start(None, fork_server)
    old = parent_of(first.pid)
    os.kill(old, signal.SIGKILL)
    await async_until(lambda: not Path(f"/proc/{old}").exists(), "the end of the process")
    second = await Init.start(None, fork_server)
    assert await run(second, "exit 4") == 4
    await first.stop(0)
    await second.stop(0)


async def test_machines_end_with_fork_server(booted: Any) -> None:
    await booted.run("setsid sleep 1000 > /dev/null 2>&1 &")
    name = booted.name
    init = booted.host._machines[name]._init
    os.kill(parent_of(init.pid), signal.SIGKILL)
    await asyncio.wait_for(init.ended.wait(), 20)
    await async_until(lambda: not Path(f"/proc/{init.pid}").exists(), "the end of the machine")
    answer = await booted.run("pgrep -c sleep")
    assert answer.out.strip() == "0", "leftovers of the previous init process"
