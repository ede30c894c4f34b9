"""Port forwarding into and out of a machine's network namespace.

TensorFlow's server listens on every interface without authentication
(tensorflow/core/distributed_runtime/rpc/grpc_server_lib.cc binds 0.0.0.0). In a network namespace
it can only be reached through the port that is forwarded here on loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Awaitable, Callable, Sequence

from tpuctl.emulator.machines.interface import MachineError
from tpuctl.emulator.machines.network.peers import is_other_user
from tpuctl.emulator.machines.programs.processes import Init

Address = tuple[str, int]
OpenConnection = Callable[[], Awaitable[socket.socket]]
CHUNK_BYTES = 1 << 18


class MachineNetwork:
    """The network namespace of one machine.

    Connections to `address` are forwarded to that port inside; the machine reaches the `outside`
    addresses as local ones.
    """

    def __init__(
        self,
        address: Address,
        outside: Sequence[Address],
        on_open: Callable[[Sequence[socket.socket]], None] = lambda listeners: None,
    ) -> None:
        """`on_open` is called with the listeners at `address`."""
        self.outside = tuple(outside)
        self._on_open = on_open
        self._address = address
        self._outbound: list[PortForward] = []
        self._inbound: PortForward | None = None
        self._init: Init | None = None

    async def join(self, init: Init) -> None:
        """Forward connections out of the network of this init process."""
        await self._close_outbound()
        self._init = init
        for address, listener in init.listeners.items():
            forward = PortForward(functools.partial(_connect_outside, address))
            self._outbound.append(forward)
            await forward.serve(listener)

    async def open_port(self) -> None:
        """Start to accept connections. Raises MachineError."""
        await self.close_port()
        forward = PortForward(self._connect_inside)
        await forward.listen(*self._address)
        self._inbound = forward
        self._on_open(forward.sockets)

    async def close_port(self) -> None:
        """Stop accepting connections, and close the open ones."""
        if self._inbound is not None:
            await self._inbound.close()
            self._inbound = None

    async def close(self) -> None:
        await self.close_port()
        await self._close_outbound()

    async def _connect_inside(self) -> socket.socket:
        if self._init is None:
            raise ConnectionRefusedError("The machine is not started.")
        return await self._init.connect("127.0.0.1", self._address[1])

    async def _close_outbound(self) -> None:
        forwards, self._outbound = self._outbound, []
        for forward in forwards:
            await forward.close()


async def _connect_outside(address: Address) -> socket.socket:
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(connection, address)
    except BaseException:
        connection.close()
        raise
    return connection


class PortForward:
    """Accepts connections in one network and forwards each to one opened in another."""

    def __init__(self, open_connection: OpenConnection) -> None:
        self._open_connection = open_connection
        self._server: asyncio.Server | None = None
        self._is_guarded = False  # rejects other users of the computer
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def sockets(self) -> Sequence[socket.socket]:
        return () if self._server is None else self._server.sockets

    async def listen(self, address: str, port: int) -> None:
        """Listen in the computer's network, for programs of this user only.

        Raises MachineError if the port is in use.
        """
        self._is_guarded = True
        try:
            self._server = await asyncio.start_server(
                self._accept, address, port, reuse_address=True, limit=CHUNK_BYTES
            )
        except OSError as problem:
            raise MachineError(
                f"A machine cannot listen on {address} port {port}: {problem.strerror or problem}"
            ) from problem

    async def serve(self, listener: socket.socket) -> None:
        """Accept connections from this listener, which `close` closes."""
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=CHUNK_BYTES)

    async def close(self) -> None:
        """Stop listening, and close the open connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        target: asyncio.StreamWriter | None = None
        try:
            if self._is_guarded and is_other_user(writer.transport):
                return
            target_reader, target = await asyncio.open_connection(
                sock=await self._open_connection(), limit=CHUNK_BYTES
            )
            await asyncio.gather(_pump(reader, target), _pump(target_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass  # one side closed: close the other
        finally:
            self._tasks.discard(task)
            for side in (writer, target):
                if side is not None:
                    side.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
