"""Port forwarding into and out of a machine's network namespace."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.ports import free_port
from tpuctl.emulator.machines.network.port_forward import MachineNetwork
from tpuctl.emulator.machines.programs.processes import Init, View, find_problems
from tpuctl.interpreters import current

DIAL = """
import socket, sys
for place in sys.argv[1:]:
    address, _, port = place.partition(":")
    try:
        with socket.create_connection((address, int(port)), 5) as made:
            made.sendall(b"hello")
            made.shutdown(socket.SHUT_WR)
            print(made.makefile().read())
    except OSError as error:
        print(type(error).__name__)
"""
# Listens on every interface, as TensorFlow does.
SHOUT = """
import socket, sys
with socket.create_server(("0.0.0.0", int(sys.argv[1]))) as server:
    print("listening", flush=True)
    while True:
        made, _ = server.accept()
        with made:
            made.sendall(made.recv(100).upper())
"""


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"echo of " + await reader.read())
    writer.close()


@pytest.fixture
async def outside() -> AsyncIterator[Callable[[], Any]]:
    """Starts servers in the computer's network that send the given answers."""
    servers = []

    async def start() -> tuple[str, int]:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        servers.append(server)
        address, port = server.sockets[0].getsockname()
        return address, port

    yield start
    for server in servers:
        server.close()


Begin = Callable[[MachineNetwork], Any]


@pytest.fixture
async def begin(tmp_path: Path) -> AsyncIterator[Begin]:
    """Starts init processes in network namespaces."""
    against = (await find_problems()).namespaces
    if against is not None:
        pytest.skip(f"machines are not isolated here: {against}")
    begun: list[tuple[MachineNetwork, Init]] = []

    async def start(network: MachineNetwork) -> Init:
        view = View((), str(tmp_path), "machine", network=network.outside)
        init = await Init.start(view)
        begun.append((network, init))
        await network.join(init)
        return init

    yield start
    for network, init in begun:
        await network.close()
        await init.stop(0)


@contextlib.asynccontextmanager
async def running(init: Init, program: str, *words: str) -> AsyncIterator[Any]:
    """A Python program in the machine, with a reader of its output."""
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as nothing, os.fdopen(reading, "rb") as output:
        files = (nothing.fileno(), writing, writing)
        argv = [current().path, "-I", "-c", program, *words]
        started = await init.spawn(argv, env={"PATH": os.defpath}, cwd="/", files=files)
        os.close(writing)
        yield output
        init.signal(started, 9)
        await started.exit


async def exchange(place: tuple[str, int], word: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*place)
    writer.write(word)
    answer = await reader.read()
    writer.close()
    return answer


async def test_only_named_addresses_are_reachable(begin: Begin, outside: Any) -> None:
    allowed, other = await outside(), await outside()
    init = await begin(MachineNetwork(("127.77.1.1", free_port()), [allowed]))
    places = [f"{address}:{port}" for address, port in (allowed, other)]
    async with running(init, DIAL, *places) as output:
        lines = await asyncio.to_thread(output.readlines)
    assert lines == [b"echo of hello\n", b"ConnectionRefusedError\n"]


async def test_forwarded_port_is_the_only_way_in(begin: Begin) -> None:
    door = ("127.77.1.2", free_port())
    network = MachineNetwork(door, [])
    init = await begin(network)
    async with running(init, SHOUT, str(door[1])) as output:
        assert await asyncio.to_thread(output.readline) == b"listening\n"
        for place in (door, ("127.0.0.1", door[1])):
            with pytest.raises(ConnectionRefusedError):
                await exchange(place, b"in")
        await network.open_port()
        assert await exchange(door, b"in") == b"IN"
        with pytest.raises(ConnectionRefusedError):
            await exchange(("127.0.0.1", door[1]), b"in")
        await network.close_port()
        with pytest.raises(ConnectionRefusedError):
            await exchange(door, b"in")
        await network.open_port()
        assert await exchange(door, b"again") == b"AGAIN"


async def test_closing_port_closes_connections(begin: Begin) -> None:
    door = ("127.77.1.3", free_port())
    network = MachineNetwork(door, [])
    init = await begin(network)
    async with running(init, SHOUT, str(door[1])) as output:
        assert await asyncio.to_thread(output.readline) == b"listening\n"
        await network.open_port()
        reader, writer = await asyncio.open_connection(*door)
        await network.close_port()
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


async def test_open_port_without_server_behind_it(begin: Begin) -> None:
    door = ("127.77.1.4", free_port())
    network = MachineNetwork(door, [])
    await begin(network)
    await network.open_port()
    reader, writer = await asyncio.open_connection(*door)
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()
