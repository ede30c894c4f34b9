"""Ports forwarded over real SSH on loopback: both ways, after drops, taken ports, silence."""

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
from tpuctl.flows.forward import PortMapping, forward_ports
from tpuctl.model.events import Event, PortForwarded, WarningIssued
from tpuctl.remote.ssh import SshTransport

HELLO = b"hello from the worker"


@dataclass
class Bench:
    server: FileServer
    transport: SshTransport
    events: list[Event]

    def port(self) -> int:
        """The local one of the only port forwarded."""
        (one,) = (one for one in self.events if isinstance(one, PortForwarded))
        return one.local_port

    def warnings(self) -> list[str]:
        return [one.diagnostic.detail for one in self.events if isinstance(one, WarningIssued)]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with serving_files(tmp_path, worker=3) as (server, transport):
        yield Bench(server, transport, [])


@asynccontextmanager
async def shouting() -> AsyncIterator[int]:
    """A program that greets, and answers in capitals once it has heard all; its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HELLO)
        writer.write((await reader.read()).upper())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def ask(port: int, text: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(text)
        writer.write_eof()
        return (await asyncio.wait_for(reader.read(), 60)).removeprefix(HELLO)
    finally:
        writer.close()


async def test_bytes_go_both_ways_and_so_do_their_ends(bench: Bench) -> None:
    async with (
        shouting() as port,
        forward_ports([PortMapping(port)], bench.transport, bench.events.append),
    ):
        (told,) = bench.events
        assert isinstance(told, PortForwarded)
        assert (told.worker, told.port) == (3, port)
        assert told.local_port != port, "that one is taken: the next free one is"
        assert told.url == f"http://127.0.0.1:{told.local_port}"
        assert await ask(told.local_port, b"hello") == b"HELLO"
        much = os.urandom(1_000_000).hex().encode()
        answers = await asyncio.gather(*(ask(told.local_port, much) for _ in range(4)))
        assert set(answers) == {much.upper()}
        assert bench.server.logins == 1, "all over one connection"
    with pytest.raises(ConnectionRefusedError):
        await ask(told.local_port, b"")


async def test_after_a_drop_the_next_connection_makes_a_new_one(bench: Bench) -> None:
    async with (
        shouting() as port,
        forward_ports([PortMapping(port)], bench.transport, bench.events.append),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.port())
        writer.write(b"cut short")
        assert await asyncio.wait_for(reader.readexactly(len(HELLO)), 60) == HELLO
        bench.server.drop()
        assert await asyncio.wait_for(reader.read(), 60) == b"", "it ends, rather than to hang"
        writer.close()
        assert await ask(bench.port(), b"again") == b"AGAIN"
        assert bench.server.logins == 2
        assert bench.warnings() == []


async def test_several_ports_at_once(bench: Bench) -> None:
    async with shouting() as first, shouting() as second:
        wanted = [PortMapping(first), PortMapping(second)]
        async with forward_ports(wanted, bench.transport, bench.events.append):
            ports = [one.local_port for one in bench.events if isinstance(one, PortForwarded)]
            assert [await ask(port, b"a") for port in ports] == [b"A", b"A"]


async def test_a_port_that_was_asked_for_is_had_or_refused(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        wanted = [PortMapping(6006), PortMapping(6006, port)]
        with pytest.raises(Usage) as refused:
            async with forward_ports(wanted, bench.transport, bench.events.append):
                pass
    assert f"port {port} of this machine is in use" in refused.value.diagnostics[0].detail
    with pytest.raises(ConnectionRefusedError):  # nor does the one before it stay open
        await ask(bench.port(), b"")
    async with (
        shouting() as there,
        forward_ports([PortMapping(there, port)], bench.transport, bench.events.append),
    ):
        assert await ask(port, b"mine") == b"MINE"


async def test_a_port_that_needs_an_administrator_is_moved_up(bench: Bench) -> None:
    async with forward_ports([PortMapping(80)], bench.transport, bench.events.append):
        assert bench.port() >= 8080


async def test_what_does_not_listen_is_told_once(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    async with forward_ports(
        [PortMapping(port)], bench.transport, bench.events.append, shares_loopback=True
    ):
        assert bench.port() != port, "it would lead to itself"
        assert [await ask(bench.port(), b"") for _ in range(3)] == [b""] * 3
        (said,) = bench.warnings()
        assert f"worker 3, port {port}" in said


async def test_a_worker_that_does_not_answer_is_an_error_at_once(bench: Bench) -> None:
    await bench.server.close()
    with pytest.raises(Unreachable):
        async with forward_ports([PortMapping(6006)], bench.transport, bench.events.append):
            pass
    assert bench.events == []
