"""Logs through connections that break: every byte once, in order, from a real machine."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tpuctl.api import Tpuctl
from tpuctl.cloud.objects import ObjectStore
from tpuctl.flows.follow import follow
from tpuctl.flows.submission import Submission
from tpuctl.flows.submit import submit
from tpuctl.model.events import Event, LogChunk, ignore
from tpuctl.remote.ssh import SshTransport


class Relay:
    """A TCP relay that cuts each connection after a random number of bytes, `cuts` times."""

    def __init__(self, host: str, port: int, seed: int, cuts: int, most: int) -> None:
        self.target = (host, port)
        self.choice = random.Random(seed)
        self.cuts_left = cuts
        self.most = most
        self.made = 0

    async def start(self) -> int:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        port: int = self.server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        self.server.close()
        await self.server.wait_closed()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.made += 1
        left = -1
        if self.cuts_left:
            self.cuts_left -= 1
            left = self.choice.randrange(self.most)
        far_reader, far_writer = await asyncio.open_connection(*self.target)
        back = asyncio.ensure_future(self.copy(far_reader, writer, left))
        forth = asyncio.ensure_future(self.copy(reader, far_writer, -1))
        await asyncio.wait([back, forth], return_when=asyncio.FIRST_COMPLETED)
        for task in (back, forth):
            task.cancel()
        await asyncio.wait([back, forth])
        for end in (writer, far_writer):
            end.transport.abort()

    async def copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, left: int
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 14):
                if left >= 0:
                    data = data[:left]
                    left -= len(data)
                target.write(data)
                await target.drain()
                if left == 0:
                    return


@pytest.fixture
async def stack(make_stack: Callable[..., Tpuctl]) -> AsyncIterator[Tpuctl]:
    stack = make_stack()
    await stack.up()
    yield stack
    await stack.down(delete_bucket=True)


SCRIPT = """
import sys, time
for number in range(40000):
    print(number, "." * (number % 97), end="\\r\\n" if number % 5 else "\\r")
    if number % 400 == 0:
        time.sleep(0.005)
"""


def whole_log() -> bytes:
    return "".join(
        f"{number} {'.' * (number % 97)}" + ("\r\n" if number % 5 else "\r")
        for number in range(40000)
    ).encode()


@pytest.mark.parametrize(
    ("has_bucket", "seed", "cuts"),
    [
        (True, 1, 60),
        pytest.param(False, 2, 100, marks=pytest.mark.soak),
    ],
)
async def test_every_byte_once_through_many_drops(
    stack: Tpuctl, tmp_path: Path, has_bucket: bool, seed: int, cuts: int
) -> None:
    """With the bucket at hand, the end of an ended job's log comes from there."""
    script = tmp_path / "drops.py"
    script.write_text(SCRIPT)
    transports = await stack.transports()
    direct = transports[0]
    assert isinstance(direct, SshTransport)
    relay = Relay(direct.address.host, direct.address.port, seed=seed, cuts=cuts, most=60_000)
    port = await relay.start()
    cut = SshTransport(0, replace(direct.address, host="127.0.0.1", port=port), stack.key.path)
    store = ObjectStore(stack.cloud.client("storage"), stack.stack.bucket)
    seen = hashlib.sha256()
    at = 0

    def emit(event: Event) -> None:
        nonlocal at
        if isinstance(event, LogChunk):
            assert event.offset == at
            at += len(event.data)
            seen.update(event.data)

    try:
        record = await submit(
            Submission.of(stack.stack, script, cloud="local"), store, transports, ignore
        )
        following = follow(record, store if has_bucket else None, {0: cut}, emit)
        assert await asyncio.wait_for(following, 400) == 0
    finally:
        await cut.close()
        await direct.close()
        await relay.close()
    assert relay.made > (2 if has_bucket else 30)
    assert at == len(whole_log())
    assert seen.hexdigest() == hashlib.sha256(whole_log()).hexdigest()
    assert await store.get_bytes(record.log_name(0)) == whole_log()
