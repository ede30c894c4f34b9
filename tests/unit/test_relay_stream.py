"""The client side of the tunnel protocol, with a scripted relay."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from tests.support.polling import async_until
from tpuctl.errors import Unreachable
from tpuctl.polling import Backoff
from tpuctl.remote import relay_frames as frames
from tpuctl.remote.iap import Destination, IapRoute, Relay, _Connector
from tpuctl.remote.relay_stream import MAX_UNACKNOWLEDGED_BYTES, Tunnel

GREETING = struct.pack(">HI", 1, 3) + b"sid"
Script = Callable[[web.WebSocketResponse, web.Request], Awaitable[None]]


@dataclass
class Scripted:
    """A relay whose connections run these scripts in order."""

    scripts: list[Script] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    port: int = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.queries.append(request.path_qs)
        if not self.scripts:
            return web.Response(status=503)
        line = web.WebSocketResponse(protocols=(frames.SUBPROTOCOL,))
        await line.prepare(request)
        await self.scripts.pop(0)(line, request)
        return line


@pytest.fixture
async def relay() -> AsyncIterator[Scripted]:
    made = Scripted()
    application = web.Application()
    application.router.add_get("/v4/{verb}", made.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.2)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    made.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    yield made
    await runner.cleanup()


@asynccontextmanager
async def tunnel_to(
    relay: Scripted, *, seconds: float = 5.0
) -> AsyncIterator[tuple[Tunnel, asyncio.StreamReader, asyncio.StreamWriter]]:
    """An open tunnel, and its client end."""

    async def token() -> str:
        return "token"

    place = Relay(f"ws://127.0.0.1:{relay.port}/v4", token, is_local=True)
    lines = _Connector(IapRoute(place, Destination("p", "z", "i")))
    near, far = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=near)
    tunnel = Tunnel(
        lines,
        *(await asyncio.open_connection(sock=far)),
        reconnect_seconds=seconds,
        backoff=Backoff(0.01, 0.05),
    )
    running = None
    try:
        await tunnel.open()
        running = asyncio.ensure_future(tunnel.run())
        yield tunnel, reader, writer
    finally:
        writer.close()
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        await tunnel.close()


async def drop(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()


def data(content: bytes) -> bytes:
    return struct.pack(">HI", 4, len(content)) + content


async def received(line: web.WebSocketResponse, count: int) -> bytes:
    """A number of bytes, or all data until the connection closes."""
    received = b""
    while len(received) < count:
        message = await line.receive()
        if message.type is not WSMsgType.BINARY:
            break
        if message.data[:2] == b"\0\4":
            received += message.data[6:]
    return received


async def test_unacknowledged_data_is_sent_again(relay: Scripted) -> None:
    got: list[bytes] = []

    async def first(line: web.WebSocketResponse, request: web.Request) -> None:
        await line.send_bytes(GREETING)
        await line.send_bytes(data(b"hello"))
        got.append(await received(line, 10))
        await line.send_bytes(struct.pack(">HQ", 7, 4))
        await drop(request)

    async def second(line: web.WebSocketResponse, request: web.Request) -> None:
        await line.send_bytes(struct.pack(">HQ", 2, 6))  # more arrived than was acknowledged
        got.append(await received(line, 4))
        await line.send_bytes(data(b" world"))
        await received(line, 1)

    relay.scripts += [first, second]
    async with tunnel_to(relay) as (tunnel, reader, writer):
        writer.write(b"0123456789")
        assert await asyncio.wait_for(reader.readexactly(11), 60) == b"hello world"
        assert tunnel.reconnections == 1
    assert got == [b"0123456789", b"6789"]
    assert relay.queries[0].startswith("/v4/connect?project=p&zone=z&instance=i&interface=nic0")
    assert relay.queries[1].startswith("/v4/reconnect?sid=sid&ack=5&zone=z")


async def test_reading_pauses_when_relay_lags(relay: Scripted) -> None:
    read = 0
    lines: list[web.WebSocketResponse] = []

    async def lag(line: web.WebSocketResponse, request: web.Request) -> None:
        nonlocal read
        lines.append(line)
        await line.send_bytes(GREETING)
        while piece := await received(line, 1):
            read += len(piece)

    relay.scripts.append(lag)
    async with tunnel_to(relay) as (tunnel, _, writer), asyncio.timeout(30):
        writer.write(bytes(3 * MAX_UNACKNOWLEDGED_BYTES))
        await async_until(lambda: read >= MAX_UNACKNOWLEDGED_BYTES, "reading one window")
        await asyncio.sleep(0.05)
        assert read < MAX_UNACKNOWLEDGED_BYTES + frames.MAX_DATA_BYTES
        assert len(tunnel._unconfirmed) == read, "and no further data is buffered"
        confirmed = read
        await lines[0].send_bytes(struct.pack(">HQ", 7, confirmed))
        await async_until(lambda: read >= confirmed + MAX_UNACKNOWLEDGED_BYTES, "reading another")
        await asyncio.sleep(0.05)
        assert read < confirmed + MAX_UNACKNOWLEDGED_BYTES + frames.MAX_DATA_BYTES, (
            "limited by the window"
        )


@pytest.mark.parametrize(
    "message",
    [
        struct.pack(">HQ", 7, 1),  # acknowledges data that was never sent
        GREETING,
        struct.pack(">HQ", 2, 0),
        b"\0",
        struct.pack(">HI", 4, 9) + b"short",
        "text",
    ],
)
async def test_protocol_violation_ends_tunnel(relay: Scripted, message: bytes | str) -> None:
    async def break_it(line: web.WebSocketResponse, request: web.Request) -> None:
        await line.send_bytes(GREETING)
        if isinstance(message, str):
            await line.send_str(message)
        else:
            await line.send_bytes(message)
        await received(line, 1)

    relay.scripts.append(break_it)
    async with tunnel_to(relay) as (tunnel, reader, _):
        assert await asyncio.wait_for(reader.read(), 60) == b""
        assert isinstance(tunnel.failure, Unreachable)
        assert "Unexpected IAP protocol" in str(tunnel.failure)
    assert len(relay.queries) == 1


async def test_unknown_frames_are_ignored(relay: Scripted) -> None:
    async def say_more(line: web.WebSocketResponse, request: web.Request) -> None:
        await line.send_bytes(struct.pack(">H", 99))
        await line.send_bytes(GREETING + b"and more")
        await line.send_bytes(struct.pack(">H", 10) + b"unknown")
        await line.send_bytes(data(b"hello"))
        await received(line, 1)

    relay.scripts.append(say_more)
    async with tunnel_to(relay) as (_, reader, _):
        assert await asyncio.wait_for(reader.readexactly(5), 60) == b"hello"


@pytest.mark.parametrize(
    ("code", "says"),
    [(1000, None), (4010, "4010"), (4001, "4001"), (4047, "no longer exists")],
)
async def test_closed_session_ends_tunnel(relay: Scripted, code: int, says: str | None) -> None:
    async def end(line: web.WebSocketResponse, request: web.Request) -> None:
        await line.send_bytes(GREETING)
        await line.close(code=code, message=b"closed")

    relay.scripts.append(end)
    async with tunnel_to(relay) as (tunnel, reader, _):
        assert await asyncio.wait_for(reader.read(), 60) == b""
        assert (says is None) == (tunnel.failure is None)
        assert says is None or says in str(tunnel.failure)
    assert len(relay.queries) == 1, "nothing was retried"


async def test_reconnect_gives_up_with_reason(relay: Scripted) -> None:
    async def leave(line: web.WebSocketResponse, request: web.Request) -> None:
        await line.send_bytes(GREETING)
        await drop(request)

    relay.scripts.append(leave)
    async with tunnel_to(relay, seconds=1) as (tunnel, reader, _):
        assert await asyncio.wait_for(reader.read(), 60) == b""
        assert isinstance(tunnel.failure, Unreachable)
        assert "503" in str(tunnel.failure)
    assert len(relay.queries) > 2


async def test_session_in_use_is_retried(relay: Scripted) -> None:
    async def leave(line: web.WebSocketResponse, request: web.Request) -> None:
        await line.send_bytes(GREETING)
        await drop(request)

    async def refuse(line: web.WebSocketResponse, request: web.Request) -> None:
        await line.close(code=4002)

    async def take(line: web.WebSocketResponse, request: web.Request) -> None:
        await line.send_bytes(struct.pack(">HQ", 2, 0))
        await line.send_bytes(data(b"again"))
        await received(line, 1)

    relay.scripts += [leave, refuse, take]
    async with tunnel_to(relay) as (_, reader, _):
        assert await asyncio.wait_for(reader.readexactly(5), 60) == b"again"


def test_any_bytes_are_parsed_or_rejected() -> None:
    chance = random.Random(7)
    for _ in range(3000):
        message = bytes(chance.choices((0, 1, 2, 4, 7, 255), k=chance.randrange(20)))
        try:
            frame = frames.parse_frame(message)
        except frames.ProtocolError:
            continue
        assert frame is None or isinstance(
            frame, frames.Connected | frames.Reconnected | frames.Data | frames.Acknowledged
        )
    whole: Any = frames.parse_frame(frames.encode_data(b"some"))
    assert whole == frames.Data(b"some")
    assert frames.parse_frame(frames.encode_acknowledgement(1 << 40)) == frames.Acknowledged(
        1 << 40
    )
