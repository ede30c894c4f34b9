"""A stream of bytes through a relay, over as many connections as it takes.

Each side keeps what it sent until the other has acknowledged it. When a connection drops, the next
one names the session and how many bytes have arrived here; the relay answers with how many arrived
there, and both send the rest again. No byte is lost and none comes twice.

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
from tpuctl.remote.relay_frames import Broken

__all__ = ["Line", "Lines", "Tunnel"]

WINDOW = 4 * 1024 * 1024  # bytes under way that nobody has acknowledged; then we read no more
ACKNOWLEDGE_AFTER = 2 * frames.LONGEST  # bytes received, or so many seconds:
ACKNOWLEDGE_SECONDS = 2.0
RECONNECT_SECONDS = 60.0
RECONNECT = Backoff(first=0.3, most=8.0, factor=1.7)
GREETING_SECONDS = 60.0
NORMAL, REAUTHENTICATE, SESSION_IN_USE = 1000, 4004, 4002
FIRST_OF_RELAY = 4000  # codes below are the WebSocket's own

Line = Any  # aiohttp.ClientWebSocketResponse


class Lines(Protocol):
    """Makes connections to the relay."""

    async def connect(self) -> Line:
        """One for a new session. Raises TpuctlError."""
        ...

    async def reconnect(self, session: str, received: int) -> Line:
        """One for a session that there is. Raises TpuctlError."""
        ...

    def refusal(self, code: int | None, reason: str) -> TpuctlError:
        """What it means that the relay closed a connection."""
        ...

    async def close(self) -> None: ...


class _Closed(Exception):
    """The relay ended a connection: with a code, or without one where it just dropped."""

    def __init__(self, code: int | None, reason: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason

    @property
    def is_final(self) -> bool:
        """Whether the session is over, so that reconnecting is of no use."""
        if self.code is None or self.code == REAUTHENTICATE:
            return False
        return self.code == NORMAL or self.code >= FIRST_OF_RELAY


class Tunnel:
    """Between a pair of streams here and a port there.

    `open` returns when the port is reached; `run` carries until one side ends, and closes both.
    `failure` then tells why, unless a side just ended. Whoever opened it closes it.
    """

    def __init__(
        self,
        lines: Lines,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        reconnect_seconds: float = RECONNECT_SECONDS,
        backoff: Backoff = RECONNECT,
    ) -> None:
        self.failure: TpuctlError | None = None
        self.reconnections = 0
        self._lines = lines
        self._reader = reader
        self._writer = writer
        self._reconnect_seconds = reconnect_seconds
        self._backoff = backoff
        self._line: Line = None
        self._session = ""
        self._unconfirmed = bytearray()  # sent, or to be sent; its first byte has this number:
        self._confirmed = 0
        self._is_read = False  # to the end of what comes from here
        self._room = asyncio.Event()
        self._received = 0
        self._acknowledged = 0

    async def open(self) -> None:
        """Connect to the port. Raises TpuctlError."""
        self._line = await self._lines.connect()
        try:
            await self._greet()
        except _Closed as closed:
            raise self._lines.refusal(closed.code, closed.reason) from None
        except Broken as broken:
            raise _broken(broken) from broken

    async def run(self) -> None:
        """Carry bytes both ways until a side is done."""
        try:
            while not await self._carry():
                await self._reconnect()
        except TpuctlError as error:
            self.failure = error
        finally:
            await self.close()

    async def close(self) -> None:
        """End both sides."""
        if self._line is not None:
            with suppress(ClientError, OSError):
                await self._line.close(code=NORMAL)
        await self._lines.close()
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _carry(self) -> bool:
        """Over the present connection; False when that dropped and another may go on."""
        sending = asyncio.ensure_future(self._send())
        others = [asyncio.ensure_future(work) for work in (self._receive(), self._acknowledge())]
        try:
            await asyncio.wait((sending, others[0]), return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and sending.exception() is None:
                return True  # all was sent: the end is ours
            await others[0]  # a connection that takes nothing more says why where it is read
            return True
        except _Closed as closed:
            if not closed.is_final:
                return False
            if closed.code != NORMAL:
                self.failure = self._lines.refusal(closed.code, closed.reason)
            return True
        except Broken as broken:
            self.failure = _broken(broken)
            return True
        except OSError:  # nobody reads here any more
            return True
        finally:
            for task in (sending, *others):
                task.cancel()
            await asyncio.gather(sending, *others, return_exceptions=True)

    async def _send(self) -> None:
        """What is not confirmed, then what comes, to the end. Ends with an error if it drops."""
        sent = self._confirmed  # in numbers of bytes from the session's beginning
        while True:
            start = sent - self._confirmed
            piece = bytes(self._unconfirmed[start : start + frames.LONGEST])
            if piece:
                sent += len(piece)
                await self._line.send_bytes(frames.data(piece))
            elif self._is_read:
                return
            elif len(self._unconfirmed) >= WINDOW:
                self._room.clear()
                await self._room.wait()
            else:
                more = await self._reader.read(frames.LONGEST)
                self._unconfirmed += more
                self._is_read = not more

    async def _receive(self) -> None:
        """Until the connection ends: raises _Closed, or Broken."""
        while True:
            message = await _message(self._line)
            frame = frames.frame(message)
            if isinstance(frame, frames.Data):
                self._writer.write(frame.content)
                await self._writer.drain()
                self._received += len(frame.content)
                if self._received - self._acknowledged > ACKNOWLEDGE_AFTER:
                    await self._tell_received()
            elif isinstance(frame, frames.Arrived):
                self._confirm(frame.count)
            elif frame is not None:
                raise Broken("it greeted a second time")

    async def _acknowledge(self) -> None:
        """Now and then tell also of what is too little to be told at once."""
        while True:
            await asyncio.sleep(ACKNOWLEDGE_SECONDS)
            await self._tell_received()

    async def _tell_received(self) -> None:
        if self._received > self._acknowledged:
            self._acknowledged = self._received
            with suppress(ClientError, OSError):  # the drop shows where the connection is read
                await self._line.send_bytes(frames.acknowledgement(self._acknowledged))

    def _confirm(self, count: int) -> None:
        """So many bytes of ours have arrived in all: they need not be kept."""
        gained = count - self._confirmed
        if not 0 <= gained <= len(self._unconfirmed):
            last = self._confirmed + len(self._unconfirmed)
            raise Broken(f"it confirms {count} bytes, where {self._confirmed} to {last} can be")
        del self._unconfirmed[:gained]
        self._confirmed = count
        self._room.set()

    async def _reconnect(self) -> None:
        """Take the session up again. Raises TpuctlError when that cannot be."""
        last: list[TpuctlError] = []

        async def probe() -> bool | None:
            try:
                self._line = await self._lines.reconnect(self._session, self._received)
            except Unreachable as error:  # the network is gone, perhaps for a moment
                last[:] = [error]
                return None
            try:
                await self._greet()
            except _Closed as closed:
                refusal = self._lines.refusal(closed.code, closed.reason)
                # The relay may not have seen yet that the connection before has dropped.
                if closed.is_final and closed.code != SESSION_IN_USE:
                    raise refusal from None
                last[:] = [refusal]
                return None
            except Broken as broken:
                raise _broken(broken) from broken
            return True

        try:
            await wait_until(
                probe,
                what="taking the tunnel up again",
                seconds=self._reconnect_seconds,
                backoff=self._backoff,
            )
        except TimedOut as error:
            raise (last[0] if last else error) from None
        self.reconnections += 1
        self._acknowledged = self._received  # the relay was told when it was asked

    async def _greet(self) -> None:
        """Wait until the relay says that the connection leads to the port."""
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                while (frame := frames.frame(await _message(self._line))) is None:
                    pass
        except TimeoutError:
            raise _Closed(None, "it took the connection and said nothing") from None
        if isinstance(frame, frames.Connected) and not self._session:
            self._session = frame.session
        elif isinstance(frame, frames.Reconnected) and self._session:
            self._confirm(frame.count)
        else:
            raise Broken("it did not greet")


async def _message(line: Line) -> bytes:
    """The next message. Raises _Closed, or Broken where it is text."""
    message = await line.receive()
    if message.type is WSMsgType.BINARY:
        return bytes(message.data)
    if message.type is WSMsgType.TEXT:
        raise Broken("a message is text")
    if message.type is WSMsgType.CLOSE:
        raise _Closed(message.data or None, message.extra or "")
    raise _Closed(None, str(message.data or ""))


def _broken(error: Broken) -> TpuctlError:
    return Unreachable(
        "IAP speaks another language",
        f"what its relay sent was not understood: {error}",
        hint="A proxy may be in between, or the protocol has changed. SSH without IAP:\n"
        "    network: {ssh: external}",
    )
