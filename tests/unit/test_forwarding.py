"""Ports forwarded over real SSH on loopback: both ways, after drops, ports in use, silent ports."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.ssh_server import FileServer, serving_files
from tpuctl.errors import Unreachable, Usage
from tpuctl.flows.machines.forward import PortMapping, forward_ports
from tpuctl.model.events import Event, PortForwarded, WarningIssued
from tpuctl.remote.ssh import SshTransport

HELLO = b"hello from the worker"


@dataclass
class Bench:
    server: FileServer
    transport: SshTransport
    events: list[Event]

    def port(self) -> int:
        """The local port of the only forwarded port."""
        (event,) = (event for event in self.events if isinstance(event, PortForwarded))
        return event.local_port

    def warnings(self) -> list[str]:
        return [
            event.diagnostic.detail for event in self.events if isinstance(event, WarningIssued)
        ]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with serving_files(tmp_path, worker=3) as (server, transport):
        yield Bench(server, transport, [])


@asynccontextmanager
async def shouting() -> AsyncIterator[int]:
    """A program that greets, and replies in capitals when its input ends; returns its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HELLO)
        writer.write((await reader.read()).upper())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def exchange(port: int, text: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(text)
        writer.write_eof()
        return (await asyncio.wait_for(reader.read(), 60)).removeprefix(HELLO)
    finally:
        writer.close()


async def test_data_and_eof_are_forwarded_both_ways(bench: Bench) -> None:
    async with (
        shouting() as port,
        forward_ports([PortMapping(port)], bench.transport, bench.events.append),
    ):
        (event,) = bench.events
        assert isinstance(event, PortForwarded)
        assert (event.worker, event.port) == (3, port)
        assert event.local_port != port, "in use: the next free port is chosen"
        assert event.url == f"http://127.0.0.1:{event.local_port}"
        assert await exchange(event.local_port, b"hello") == b"HELLO"
        much = os.urandom(1_000_000).hex().encode()
        answers = await asyncio.gather(*(exchange(event.local_port, much) for _ in range(4)))
        assert set(answers) == {much.upper()}
        assert bench.server.logins == 1, "one connection for all"
    with pytest.raises(ConnectionRefusedError):
        await exchange(event.local_port, b"")


async def test_next_connection_reconnects_after_drop(bench: Bench) -> None:
    async with (
        shouting() as port,
        forward_ports([PortMapping(port)], bench.transport, bench.events.append),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.port())
        writer.write(b"cut short")
        assert await asyncio.wait_for(reader.readexactly(len(HELLO)), 60) == HELLO
        bench.server.drop()
        assert await asyncio.wait_for(reader.read(), 60) == b"", "it ends instead of hanging"
        writer.close()
        assert await exchange(bench.port(), b"again") == b"AGAIN"
        assert bench.server.logins == 2
        assert bench.warnings() == []


async def test_several_ports(bench: Bench) -> None:
    async with shouting() as first, shouting() as second:
        requested = [PortMapping(first), PortMapping(second)]
        async with forward_ports(requested, bench.transport, bench.events.append):
            ports = [event.local_port for event in bench.events if isinstance(event, PortForwarded)]
            assert [await exchange(port, b"a") for port in ports] == [b"A", b"A"]


async def test_requested_local_port_is_used_or_rejected(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        requested = [PortMapping(6006), PortMapping(6006, port)]
        with pytest.raises(Usage) as refused:
            async with forward_ports(requested, bench.transport, bench.events.append):
                pass
    assert f"port {port} of this machine is in use" in refused.value.diagnostics[0].detail
    with pytest.raises(ConnectionRefusedError):  # the previous one was closed
        await exchange(bench.port(), b"")
    async with (
        shouting() as there,
        forward_ports([PortMapping(there, port)], bench.transport, bench.events.append),
    ):
        assert await exchange(port, b"mine") == b"MINE"


async def test_privileged_port_is_moved_up(bench: Bench) -> None:
    async with forward_ports([PortMapping(80)], bench.transport, bench.events.append):
        assert bench.port() >= 8080


async def test_closed_port_is_reported_once(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    async with forward_ports(
        [PortMapping(port)], bench.transport, bench.events.append, shares_loopback=True
    ):
        assert bench.port() != port, "the port would forward to itself"
        assert [await exchange(bench.port(), b"") for _ in range(3)] == [b""] * 3
        (warning,) = bench.warnings()
        assert f"worker 3, port {port}" in warning


async def test_closed_port_of_pair_names_order(bench: Bench) -> None:
    """For those who know the pair the other way around."""
    address = ("127.0.0.1", 0)
    with socket.create_server(address) as first, socket.create_server(address) as second:
        local, closed = first.getsockname()[1], second.getsockname()[1]
    mapping = PortMapping(closed, local)
    async with forward_ports([mapping], bench.transport, bench.events.append):
        assert await exchange(local, b"") == b""
    (warning,) = (event for event in bench.events if isinstance(event, WarningIssued))
    assert f"In {local}:{closed}, the worker's port is the second" in warning.diagnostic.hint


async def test_unreachable_worker_fails_immediately(bench: Bench) -> None:
    await bench.server.close()
    with pytest.raises(Unreachable):
        async with forward_ports([PortMapping(6006)], bench.transport, bench.events.append):
            pass
    assert bench.events == []
