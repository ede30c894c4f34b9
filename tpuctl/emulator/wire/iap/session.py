"""One tunnel of Identity-Aware Proxy: a connection to a machine's port that survives reconnects.

Frames are WebSocket messages (Google Cloud SDK 528, api_lib/compute/iap_tunnel_*.py): a two-byte
tag; then, for data and the session id, a four-byte length and the content; for acknowledgments, an
eight-byte count. Sent data is buffered until the client acknowledges it.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable

from aiohttp import WSCloseCode, WSMsgType, web

_SID, _RECONNECTED, _DATA, _ACK = 0x0001, 0x0002, 0x0004, 0x0007
_MAX_FRAME_BYTES = 16384
# A guess: the client's own code acknowledges after twice the largest frame, and reads on.
_WINDOW_BYTES = 64 * _MAX_FRAME_BYTES
_ACK_AFTER_BYTES = 2 * _MAX_FRAME_BYTES


class Close(Exception):
    """The relay closes a connection with one of its codes.

    The codes' names: GoogleCloudPlatform/iap-desktop, SshRelayCloseCode.
    """

    SID_UNKNOWN = 4001
    SID_IN_USE = 4002
    BACKEND = 4003
    REAUTHENTICATE = 4004
    BAD_ACK = 4005
    INVALID_ACK = 4006
    INVALID_OPCODE = 4007
    WRITE_FAILED = 4009
    READ_FAILED = 4010
    INVALID_DATA = 4013
    NOT_AUTHORIZED = 4033
    LOOKUP_FAILED = 4047

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Session:
    """A connection to a port, with `websocket` as the client's current connection, if any."""

    def __init__(
        self,
        sid: str,
        email: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.sid = sid
        self.email = email
        self.websocket: web.WebSocketResponse | None = None
        self.is_over = False
        self._writer = writer
        self._unacknowledged = bytearray()  # from the machine, starting at offset `_start`
        self._start = 0
        self._received = 0  # from the client
        self._acknowledged = 0
        self._has_ended = False  # the machine's side
        self._changed = asyncio.Condition()
        self._reading = asyncio.ensure_future(self._read(reader))

    async def serve(
        self,
        websocket: web.WebSocketResponse,
        acknowledged: int | None,
        cut: Callable[[str, int], bool],
    ) -> None:
        """Serve this connection until it ends. Raises Close if the client violates the protocol.

        `acknowledged` is the client's count of received bytes, None for a new session. `cut` is
        called after each frame, with "response" or "request" and the bytes sent in that direction;
        it returns whether it cut the connection.
        """
        if acknowledged is not None:
            async with self._changed:
                self._acknowledge(acknowledged, Close.BAD_ACK)
                self._changed.notify_all()
        self.websocket = websocket
        greeting = (
            struct.pack(">HI", _SID, len(self.sid)) + self.sid.encode()
            if acknowledged is None
            else struct.pack(">HQ", _RECONNECTED, self._received)
        )
        self._acknowledged = self._received
        sending = asyncio.ensure_future(self._send(websocket, cut, greeting))
        receiving = asyncio.ensure_future(self._receive(websocket, cut))
        try:
            await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
            for task in (receiving, sending):
                if task.done():
                    task.result()
            if receiving.done():
                self.is_over = websocket.close_code not in (None, WSCloseCode.ABNORMAL_CLOSURE)
            else:
                self.is_over = True
                raise Close(Close.READ_FAILED, "The machine closed the connection.")
        except Close as close:
            self.is_over = close.code != Close.REAUTHENTICATE  # clients reconnect after that one
            raise
        except ConnectionError:
            pass  # the client may reconnect
        finally:
            self.websocket = None
            for task in (sending, receiving):
                task.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)

    async def end(self) -> None:
        """Close the connection to the machine."""
        self.is_over = True
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_MAX_FRAME_BYTES):
                async with self._changed:
                    self._unacknowledged += data
                    self._changed.notify_all()
                    await self._changed.wait_for(lambda: len(self._unacknowledged) < _WINDOW_BYTES)
        async with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    async def _send(
        self, websocket: web.WebSocketResponse, cut: Callable[[str, int], bool], greeting: bytes
    ) -> None:
        await websocket.send_bytes(greeting)
        position = self._start
        passed = 0
        while chunk := await self._next_chunk(position):
            position += len(chunk)
            passed += len(chunk)
            await websocket.send_bytes(struct.pack(">HI", _DATA, len(chunk)) + chunk)
            if cut("response", passed):
                await _wait_forever()

    async def _next_chunk(self, position: int) -> bytes:
        """The machine's output from that offset on; b"" at its end."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._has_ended or self._start + len(self._unacknowledged) > position
            )
            first = position - self._start
            return bytes(self._unacknowledged[first : first + _MAX_FRAME_BYTES])

    async def _receive(
        self, websocket: web.WebSocketResponse, cut: Callable[[str, int], bool]
    ) -> None:
        passed = 0
        async for message in websocket:
            if message.type is not WSMsgType.BINARY:
                raise Close(Close.INVALID_OPCODE, "Only binary messages are supported.")
            data = bytes(message.data)
            tag = data[:2]
            if tag == struct.pack(">H", _ACK) and len(data) >= 10:
                async with self._changed:
                    self._acknowledge(struct.unpack_from(">Q", data, 2)[0], Close.INVALID_ACK)
                    self._changed.notify_all()
            elif tag == struct.pack(">H", _DATA) and len(data) >= 6:
                content = data[6:]
                if (
                    len(content) != struct.unpack_from(">I", data, 2)[0]
                    or len(content) > _MAX_FRAME_BYTES
                ):
                    raise Close(Close.INVALID_DATA, "Invalid frame length.")
                await self._forward(content)
                passed += len(content)
                if cut("request", passed):
                    await _wait_forever()
                if self._received - self._acknowledged > _ACK_AFTER_BYTES:
                    self._acknowledged = self._received
                    await websocket.send_bytes(struct.pack(">HQ", _ACK, self._received))

    async def _forward(self, content: bytes) -> None:
        self._writer.write(content)
        self._received += len(content)
        try:
            await self._writer.drain()
        except OSError:
            raise Close(Close.WRITE_FAILED, "Failed to write to the machine.") from None

    def _acknowledge(self, count: int, code: int) -> None:
        """Drop the bytes that the client has received, `count` in total."""
        if not self._start <= count <= self._start + len(self._unacknowledged):
            raise Close(code, f"Invalid acknowledgment of {count} bytes.")
        del self._unacknowledged[: count - self._start]
        self._start = count


async def _wait_forever() -> None:
    """Wait to be canceled when the cut connection is closed."""
    await asyncio.Event().wait()
