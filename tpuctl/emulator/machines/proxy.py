"""The two ends of a connection that goes through the gateway."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

from tpuctl.emulator.machines.framing import RequestFraming

__all__ = ["AskingOn", "End", "Keeper", "RequestEnd"]

HIGH_WATER = 1 << 20
PREFACE = b"PRI * HTTP/2.0"


class Keeper:
    """Knows all ends that are open, to end them with the gateway."""

    def __init__(self) -> None:
        self._ends: set[End] = set()

    def keep(self, end: End) -> None:
        self._ends.add(end)

    def drop(self, end: End) -> None:
        self._ends.discard(end)

    def abort(self) -> None:
        for end in list(self._ends):
            end.abort()


class End(asyncio.Protocol):
    """One end of a joined pair: what arrives here leaves at the other, no faster than it can."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper
        self.transport: asyncio.Transport | None = None
        self.other: End | None = None
        self.early = b""  # arrived before there was another end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=HIGH_WATER)
        self.keeper.keep(self)
        if self.other is not None and self.other.early:
            self.transport.write(self.other.early)
            self.other.early = b""

    def data_received(self, data: bytes) -> None:
        if self.other is None or self.other.transport is None:
            self.early += data
        else:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        other = self.other.transport if self.other is not None else None
        if other is not None and other.can_write_eof():
            other.write_eof()
            return True
        return False

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            with contextlib.suppress(RuntimeError):
                self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            with contextlib.suppress(RuntimeError):
                self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.keeper.drop(self)
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()

    def abort(self) -> None:
        self.keeper.drop(self)
        if self.transport is not None:
            self.transport.abort()


class RequestEnd(End):
    """A client that thinks it speaks to Google: in HTTP/1.1, or in HTTP/2 for gRPC."""

    def __init__(self, keeper: Keeper) -> None:
        super().__init__(keeper)
        self._framing = RequestFraming()
        self._first: bytes | None = b""  # until it is known which of the two; None from then on
        self._is_rpc = False

    def data_received(self, data: bytes) -> None:
        if self._first is not None:
            data = self._first + data
            if PREFACE.startswith(data[: len(PREFACE)]) and len(data) < len(PREFACE):
                self._first = data
                return
            self._first, self._is_rpc = None, data.startswith(PREFACE)
        if self._is_rpc:
            super().data_received(data)
            return
        try:
            parts = self._framing.feed(data)
        except ValueError:
            self.abort()
            return
        if parts and self.other is not None and self.other.transport is not None:
            self.other.transport.writelines(parts)

    def eof_received(self) -> bool:
        return False  # TLS has no half-closed connections


class AskingOn(End):
    """Our own CONNECT to the computer's proxy, until that has answered."""

    def __init__(self, keeper: Keeper) -> None:
        super().__init__(keeper)
        self._answer: asyncio.Future[tuple[asyncio.Transport, bytes]]
        self._answer = asyncio.get_running_loop().create_future()
        self._head = b""

    async def open_tunnel(self, head: bytes) -> tuple[asyncio.Transport, bytes]:
        """The transport once it leads to the host, and what came after the answer."""
        assert self.transport is not None
        self.transport.write(head)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        self._head += data
        head, end, after = self._head.partition(b"\r\n\r\n")
        if not end or self._answer.done() or self.transport is None:
            return
        status = head.partition(b"\r\n")[0].decode("latin-1")
        if status.split(" ")[1:2] == ["200"]:
            self._answer.set_result((self.transport, after))
        else:
            self._answer.set_exception(OSError(f"this computer's proxy said {status}"))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.keeper.drop(self)
        if not self._answer.done():
            self._answer.set_exception(OSError("this computer's proxy hung up"))
