"""The ways in and out of a machine with a network of its own.

TensorFlow's server listens on every interface of its network and asks nobody who they are
(tensorflow/core/distributed_runtime/rpc/grpc_server_lib.cc binds 0.0.0.0): in a network of its own
it can be reached through the door alone that is opened here on loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Awaitable, Callable, Sequence

from tpuctl.emulator.machines.interface import MachineError
from tpuctl.emulator.machines.peers import is_strangers
from tpuctl.emulator.machines.processes import Init

__all__ = ["Door", "OwnNetwork"]

Place = tuple[str, int]
Reach = Callable[[], Awaitable[socket.socket]]
CHUNK = 1 << 18


class OwnNetwork:
    """The network of one machine.

    Who knocks at the door reaches that port in it; it reaches the places outside as its own.
    """

    def __init__(self, door: Place, outside: Sequence[Place]) -> None:
        self.outside = tuple(outside)
        self._place = door
        self._ways_out: list[Door] = []
        self._door: Door | None = None
        self._init: Init | None = None

    async def join(self, init: Init) -> None:
        """Lead out from the network that this first process made."""
        await self._close_ways_out()
        self._init = init
        for place, listener in init.listeners.items():
            way = Door(functools.partial(_dial, place))
            self._ways_out.append(way)
            await way.open_on(listener)

    async def open_door(self) -> None:
        """Let in who knocks at the door. Raises MachineError."""
        await self.close_door()
        door = Door(self._enter)
        await door.open_at(*self._place)
        self._door = door

    async def close_door(self) -> None:
        """Refuse who knocks, and end what goes through."""
        if self._door is not None:
            await self._door.close()
            self._door = None

    async def close(self) -> None:
        await self.close_door()
        await self._close_ways_out()

    async def _enter(self) -> socket.socket:
        if self._init is None:
            raise ConnectionRefusedError("The machine is not started.")
        return await self._init.connect("127.0.0.1", self._place[1])

    async def _close_ways_out(self) -> None:
        ways, self._ways_out = self._ways_out, []
        for way in ways:
            await way.close()


async def _dial(place: Place) -> socket.socket:
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(connection, place)
    except BaseException:
        connection.close()
        raise
    return connection


class Door:
    """Accepts connections in one network and joins each to one that `reach` makes in another."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._server: asyncio.Server | None = None
        self._is_guarded = False  # against other users of the computer
        self._joined: set[asyncio.Task[None]] = set()

    async def open_at(self, address: str, port: int) -> None:
        """Listen there in the computer's network, for programs of this user alone.

        Raises MachineError if another program listens there.
        """
        self._is_guarded = True
        try:
            self._server = await asyncio.start_server(
                self._accept, address, port, reuse_address=True, limit=CHUNK
            )
        except OSError as problem:
            raise MachineError(
                f"A machine cannot listen on {address} port {port}: {problem.strerror or problem}"
            ) from problem

    async def open_on(self, listener: socket.socket) -> None:
        """Accept what comes to this listener, which is closed with the door."""
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=CHUNK)

    async def close(self) -> None:
        """Stop listening, and end the connections that go through."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._joined):
            task.cancel()
        await asyncio.gather(*self._joined, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._joined.add(task)
        far: asyncio.StreamWriter | None = None
        try:
            if self._is_guarded and is_strangers(writer.transport):
                return
            far_reader, far = await asyncio.open_connection(sock=await self._reach(), limit=CHUNK)
            await asyncio.gather(_pump(reader, far), _pump(far_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass  # one side is gone, and so is the other
        finally:
            self._joined.discard(task)
            for side in (writer, far):
                if side is not None:
                    side.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
