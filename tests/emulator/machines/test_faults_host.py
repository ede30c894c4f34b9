"""Machines whose host has failed, with existing and new connections."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import asyncssh
import pytest
import requests

from tpuctl.emulator.machines.interface import MachineError


async def begin(lab: Any, stack: Any, *, worker: int = 0) -> Any:
    """A program that reports any signal, and its connection."""
    connection = await stack.enter_async_context(lab.connect(worker=worker))
    process = await connection.create_process(
        "trap 'echo signalled > ~/signalled' TERM HUP; echo began; while true; do sleep 0.05; done",
        encoding="utf-8",
    )
    assert await asyncio.wait_for(process.stdout.readline(), 20) == "began\n"
    return connection, process


async def test_failed_host_refuses_connections(either: Any) -> None:
    await either.boot()
    async with contextlib.AsyncExitStack() as stack:
        _, process = await begin(either, stack)
        await either.host.fail_host(either.name, is_silent=False)
        with pytest.raises(asyncssh.ConnectionLost):
            await asyncio.wait_for(process.stdout.read(), 20)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.wait_for(either.run("true"), 20)
    (home,) = either.home.glob("machines/*/home/anna")
    assert not (home / "signalled").exists()
    assert either.host.machines() == [either.name]


async def test_silent_host_does_not_answer(booted: Any) -> None:
    async with contextlib.AsyncExitStack() as stack:
        connection, process = await begin(booted, stack)
        await booted.host.fail_host(booted.name, is_silent=True)
        process.stdin.write("anybody?\n")
        with pytest.raises(TimeoutError):  # neither data nor EOF
            await asyncio.wait_for(process.stdout.read(), 0.5)
        endpoint = booted.specs[0].endpoint
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(
                asyncio.open_connection(endpoint.address, endpoint.ssh_port), 0.5
            )
        connection.abort()


async def test_ssh_keepalive_detects_silent_host(booted: Any) -> None:
    endpoint = booted.specs[0].endpoint
    connection = await asyncssh.connect(
        endpoint.address,
        endpoint.ssh_port,
        username="anna",
        client_keys=[booted.key],
        known_hosts=None,
        config=None,
        agent_path=None,
        keepalive_interval=0.1,
        keepalive_count_max=2,
    )
    await booted.host.fail_host(booted.name, is_silent=True)
    await asyncio.wait_for(connection.wait_closed(), 20)


async def test_failed_host_stops_metadata_and_programs(isolated: Any) -> None:
    await isolated.boot(workers=2)
    url = (await isolated.run("echo http://$GCE_METADATA_HOST/computeMetadata/v1/")).out.strip()
    headers = {"Metadata-Flavor": "Google"}

    def connect() -> int:
        with requests.Session() as session:
            session.trust_env = False
            return session.get(url, headers=headers, timeout=60).status_code

    assert await asyncio.to_thread(connect) == 200
    await isolated.host.fail_host(isolated.name, is_silent=True)
    with pytest.raises(requests.ConnectionError):
        await asyncio.to_thread(connect)
    async with isolated.connect(worker=1) as connection:  # the other workers are unaffected
        assert (await connection.run("echo here", encoding="utf-8")).stdout == "here\n"


@pytest.mark.parametrize("is_silent", [True, False])
async def test_failed_host_recovers_after_restart(either: Any, is_silent: bool) -> None:
    await either.boot()
    await either.run("echo kept > ~/file")
    await either.host.fail_host(either.name, is_silent=is_silent)
    await either.host.boot(either.specs[0], lambda _: None)  # no effect without a shutdown
    with pytest.raises((TimeoutError, OSError)):
        await asyncio.wait_for(either.run("true"), 0.5)
    await either.host.shut_down(either.name)
    await either.host.boot(either.specs[0], lambda _: None)
    assert (await either.run("cat ~/file")).out == "kept\n"
    await either.host.fail_host(either.name, is_silent=is_silent)
    await either.host.discard(either.name)
    await either.boot()
    assert (await either.run("ls ~")).out == ""


async def test_failed_host_stays_failed_after_server_restart(make_lab: Any, tmp_path: Path) -> None:
    lab = await make_lab()
    spec = await lab.boot()
    await lab.host.fail_host(spec.name, is_silent=True)
    await lab.host.close()
    again = await make_lab()
    again.specs = lab.specs
    await again.host.boot(spec, lambda _: None)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(again.run("true"), 0.5)
    await again.host.shut_down(spec.name)
    await again.host.boot(spec, lambda _: None)
    assert (await again.run("echo back")).out == "back\n"


async def test_fault_requires_running_machine(lab: Any) -> None:
    with pytest.raises(MachineError, match="is not running"):
        await lab.host.fail_host("another", is_silent=True)
