"""A reliable byte stream through a relay that survives dropped connections.

Each side buffers what it sent until the other acknowledges it. After a drop, the next connection
names the session and how many bytes were received here; the relay replies with how many it
received, and both resend the rest. No byte is lost or duplicated.

    here ── StreamReader ──> unconfirmed ── WebSocket ──> relay ──> the machine's port
    here <── StreamWriter ── received    <── WebSocket ── relay <── the machine's port
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Protocol

from aiohttp import ClientError, WSMsgType

from tpuctl.errors import TimedOut, TpuctlError, Unreachable
from tpuctl.polling import Backoff, wait_until
from tpuctl.remote import relay_frames as frames
from tpuctl.remote.relay_frames import ProtocolError

MAX_UNACKNOWLEDGED_BYTES = 4 * 1024 * 1024  # unacknowledged bytes; beyond that we stop reading
ACKNOWLEDGE_AFTER = 2 * frames.MAX_DATA_BYTES  # received bytes, or after:
ACKNOWLEDGE_SECONDS = 2.0
RECONNECT_SECONDS = 60.0
RECONNECT = Backoff(initial=0.3, maximum=8.0, multiplier=1.7)
HANDSHAKE_SECONDS = 60.0
NORMAL, REAUTHENTICATE, SESSION_IN_USE = 1000, 4004, 4002
MIN_RELAY_CODE = 4000  # lower codes are WebSocket's

Connection = Any  # aiohttp.ClientWebSocketResponse


class Connector(Protocol):
    """Opens connections to the relay."""

    async def connect(self) -> Connection:
        """Open a connection for a new session. Raises TpuctlError."""
        ...

    async def reconnect(self, session: str, received: int) -> Connection:
        """Open a connection for an existing session. Raises TpuctlError."""
        ...

    def close_error(self, code: int | None, reason: str) -> TpuctlError:
        """The error for a connection that the relay closed."""
        ...

    async def close(self) -> None: ...


class _Closed(Exception):
    """The relay closed a connection with a code, or it dropped without one."""

    def __init__(self, code: int | None, reason: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason

    @property
    def is_final(self) -> bool:
        """Whether the session is over, so that reconnecting is useless."""
        if self.code is None or self.code == REAUTHENTICATE:
            return False
        return self.code == NORMAL or self.code >= MIN_RELAY_CODE


class Tunnel:
    """A tunnel between a local pair of streams and a remote port.

    `open` returns once the port is connected; `run` transfers data until one side ends, then closes
    both. `failure` holds the error, if any. The caller of `open` also closes the tunnel.
    """

    def __init__(
        self,
        connector: Connector,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        reconnect_seconds: float = RECONNECT_SECONDS,
        backoff: Backoff = RECONNECT,
    ) -> None:
        self.failure: TpuctlError | None = None
        self.reconnections = 0
        self._connector = connector
        self._reader = reader
        self._writer = writer
        self._reconnect_seconds = reconnect_seconds
        self._backoff = backoff
        self._connection: Connection = None
        self._session = ""
        self._unconfirmed = bytearray()  # sent or to be sent; its first byte has this offset:
        self._confirmed = 0
        self._is_eof = False  # the local reader is at its end
        self._window = asyncio.Event()
        self._received = 0
        self._acknowledged = 0

    async def open(self) -> None:
        """Connect to the port. Raises TpuctlError."""
        self._connection = await self._connector.connect()
        try:
            await self._wait_connected()
        except _Closed as closed:
            raise self._connector.close_error(closed.code, closed.reason) from None
        except ProtocolError as broken:
            raise _protocol_error(broken) from broken

    async def run(self) -> None:
        """Transfer data both ways until a side ends."""
        try:
            while not await self._transfer():
                await self._reconnect()
        except TpuctlError as error:
            self.failure = error
        finally:
            await self.close()

    async def close(self) -> None:
        """Close both sides."""
        if self._connection is not None:
            with suppress(ClientError, OSError):
                await self._connection.close(code=NORMAL)
        await self._connector.close()
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _transfer(self) -> bool:
        """Transfer over the current connection; False if it dropped and the session can be
        resumed."""
        sending = asyncio.ensure_future(self._send())
        others = [asyncio.ensure_future(work) for work in (self._receive(), self._acknowledge())]
        try:
            await asyncio.wait((sending, others[0]), return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and sending.exception() is None:
                return True  # everything was sent: the local side ended
            await others[0]  # the reading side knows why a connection failed
            return True
        except _Closed as closed:
            if not closed.is_final:
                return False
            if closed.code != NORMAL:
                self.failure = self._connector.close_error(closed.code, closed.reason)
            return True
        except ProtocolError as broken:
            self.failure = _protocol_error(broken)
            return True
        except OSError:  # the local side closed
            return True
        finally:
            for task in (sending, *others):
                task.cancel()
            await asyncio.gather(sending, *others, return_exceptions=True)

    async def _send(self) -> None:
        """Send unconfirmed data, then new data to the end. Raises if the connection drops."""
        position = self._confirmed  # offset from the start of the session
        while True:
            start = position - self._confirmed
            chunk = bytes(self._unconfirmed[start : start + frames.MAX_DATA_BYTES])
            if chunk:
                position += len(chunk)
                await self._connection.send_bytes(frames.encode_data(chunk))
            elif self._is_eof:
                return
            elif len(self._unconfirmed) >= MAX_UNACKNOWLEDGED_BYTES:
                self._window.clear()
                await self._window.wait()
            else:
                data = await self._reader.read(frames.MAX_DATA_BYTES)
                self._unconfirmed += data
                self._is_eof = not data

    async def _receive(self) -> None:
        """Receive until the connection ends: raises _Closed or ProtocolError."""
        while True:
            message = await _message(self._connection)
            frame = frames.parse_frame(message)
            if isinstance(frame, frames.Data):
                self._writer.write(frame.content)
                await self._writer.drain()
                self._received += len(frame.content)
                if self._received - self._acknowledged > ACKNOWLEDGE_AFTER:
                    await self._send_acknowledgement()
            elif isinstance(frame, frames.Acknowledged):
                self._confirm(frame.count)
            elif frame is not None:
                raise ProtocolError("it connected twice")

    async def _acknowledge(self) -> None:
        """Periodically acknowledge what is below the threshold."""
        while True:
            await asyncio.sleep(ACKNOWLEDGE_SECONDS)
            await self._send_acknowledgement()

    async def _send_acknowledgement(self) -> None:
        if self._received > self._acknowledged:
            self._acknowledged = self._received
            with suppress(ClientError, OSError):  # the reading side detects the drop
                await self._connection.send_bytes(frames.encode_acknowledgement(self._acknowledged))

    def _confirm(self, count: int) -> None:
        """The relay has received `count` bytes in total: drop them from the buffer."""
        acknowledged = count - self._confirmed
        if not 0 <= acknowledged <= len(self._unconfirmed):
            last = self._confirmed + len(self._unconfirmed)
            raise ProtocolError(f"it confirms {count} bytes; expected {self._confirmed} to {last}")
        del self._unconfirmed[:acknowledged]
        self._confirmed = count
        self._window.set()

    async def _reconnect(self) -> None:
        """Resume the session. Raises TpuctlError if that fails."""
        last: list[TpuctlError] = []

        async def probe() -> bool | None:
            try:
                self._connection = await self._connector.reconnect(self._session, self._received)
            except Unreachable as error:  # the network may be down temporarily
                last[:] = [error]
                return None
            try:
                await self._wait_connected()
            except _Closed as closed:
                refusal = self._connector.close_error(closed.code, closed.reason)
                # The relay may not have noticed yet that the previous connection dropped.
                if closed.is_final and closed.code != SESSION_IN_USE:
                    raise refusal from None
                last[:] = [refusal]
                return None
            except ProtocolError as broken:
                raise _protocol_error(broken) from broken
            return True

        try:
            await wait_until(
                probe,
                description="reconnecting the tunnel",
                seconds=self._reconnect_seconds,
                backoff=self._backoff,
            )
        except TimedOut as error:
            raise (last[0] if last else error) from None
        self.reconnections += 1
        self._acknowledged = self._received  # sent to the relay when reconnecting

    async def _wait_connected(self) -> None:
        """Wait until the relay reports that the port is connected."""
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                while (frame := frames.parse_frame(await _message(self._connection))) is None:
                    pass
        except TimeoutError:
            raise _Closed(None, "it accepted the connection and sent nothing") from None
        if isinstance(frame, frames.Connected) and not self._session:
            self._session = frame.session
        elif isinstance(frame, frames.Reconnected) and self._session:
            self._confirm(frame.count)
        else:
            raise ProtocolError("unexpected first frame")


async def _message(connection: Connection) -> bytes:
    """The next message. Raises _Closed, or ProtocolError for text."""
    message = await connection.receive()
    if message.type is WSMsgType.BINARY:
        return bytes(message.data)
    if message.type is WSMsgType.TEXT:
        raise ProtocolError("a message is text")
    if message.type is WSMsgType.CLOSE:
        raise _Closed(message.data or None, message.extra or "")
    raise _Closed(None, str(message.data or ""))


def _protocol_error(error: ProtocolError) -> TpuctlError:
    return Unreachable(
        "Unexpected IAP protocol response",
        f"invalid data from the relay: {error}",
        hint="A proxy may interfere, or the protocol has changed. To use SSH without IAP:\n"
        "    network: {ssh: external}",
    )
