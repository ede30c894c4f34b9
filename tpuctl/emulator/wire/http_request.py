"""An HTTP request as seen by the handlers of all APIs."""

from __future__ import annotations

import json
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tpuctl.emulator.faults.http_exchange import Exchange
from tpuctl.emulator.faults.traffic import Caller, ConnectionCut
from tpuctl.emulator.state.errors import ApiError, invalid

_MAX_JSON_BYTES = 32 * 1024 * 1024
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # zlib's window bits
_UNSUPPORTED_ENCODINGS = ("br", "compress", "zstd")
_MAX_INFLATED_BYTES = 256 * 1024  # at once, whatever the compressed bytes expand to


@dataclass
class Request:
    """One HTTP request, without its token prefix."""

    raw: web.BaseRequest
    verb: str
    path: str  # still percent-encoded
    query: dict[str, list[str]]
    prefix: str  # "" or "/t/TOKEN": links in responses must include it
    email: str = ""
    token: str = ""
    scopes: frozenset[str] = frozenset()  # of the token
    is_secret: bool = False  # left out of transcripts, as responses with tokens
    content: bytes = b""  # the body as read for the transcript: never an object's data
    exchange: Exchange = field(default_factory=Exchange)
    # Content-Encoding is the object's, as in uploads of the XML API; of any other request it is
    # that of the transfer, and the body is decoded.
    keeps_encoding: bool = False

    def param(self, key: str, default: str = "") -> str:
        """The value of a query parameter; the last one if it is repeated."""
        return self.query[key][-1] if self.query.get(key) else default

    @property
    def caller(self) -> Caller:
        return Caller(self.email, self._is_connected, self.exchange, self.scopes)

    def _is_connected(self) -> bool:
        transport = self.raw.transport
        return transport is not None and not transport.is_closing()

    @property
    def host(self) -> str:
        return str(self.raw.headers.get("Host", "")).lower()

    @property
    def base_url(self) -> str:
        """The prefix of links in the response, with the scheme and host of the request."""
        scheme = "https" if self.raw.headers.get("X-Forwarded-Proto") == "https" else "http"
        return f"{scheme}://{self.raw.headers.get('Host', '127.0.0.1')}{self.prefix}"

    async def read(self, max_bytes: int = _MAX_JSON_BYTES) -> bytes:
        """The whole body, limited to `max_bytes`."""
        await self.send_continue()
        data = bytearray()
        async for chunk in self._decode(self.raw.content.iter_any()):
            data += chunk
            if len(data) > max_bytes:
                raise ApiError("INVALID_ARGUMENT", "Request payload size exceeds the limit.")
        self.content = bytes(data)
        self.exchange.received = len(data)
        return self.content

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as a stream, of any size. Raises ConnectionCut where a fault cuts it."""
        await self.send_continue()
        async for chunk in self._decode(self._received()):
            yield chunk

    async def _received(self) -> AsyncIterator[bytes]:
        limit = self.exchange.limit("request", self.raw.content_length)
        passed = 0
        async for chunk in self.raw.content.iter_any():
            if limit is not None and passed + len(chunk) > limit:
                yield chunk[: limit - passed]
                code = self.exchange.code("request")
                if self.exchange.trigger("request"):
                    if code:
                        raise ApiError(code, "The upload was interrupted.")
                    raise ConnectionCut
                yield chunk[limit - passed :]
                limit = None
            else:
                yield chunk
            passed += len(chunk)

    def _decode(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        encoding = self.raw.headers.get("Content-Encoding", "").strip().lower()
        if self.keeps_encoding:
            return chunks
        if encoding in _UNSUPPORTED_ENCODINGS:
            raise invalid(f"Unsupported Content-Encoding: {encoding}")
        return _inflate(chunks, encoding) if encoding in _WINDOWS else chunks

    async def send_continue(self) -> None:
        """Send 100 Continue if the client expects it."""
        if self.raw.headers.get("Expect", "").lower() == "100-continue":
            writer: Any = self.raw.writer
            await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            writer.output_size = 0


async def _inflate(chunks: AsyncIterator[bytes], encoding: str) -> AsyncIterator[bytes]:
    """The decompressed stream, of any number of gzip members."""
    inflater = None
    try:
        async for chunk in chunks:
            rest, is_full = chunk, False
            while rest or is_full:
                if inflater is None:
                    has_header = encoding != "deflate" or rest[0] & 0xF == 8  # RFC 1950
                    inflater = zlib.decompressobj(_WINDOWS[encoding] if has_header else -15)
                piece = inflater.decompress(rest, _MAX_INFLATED_BYTES)
                yield piece
                rest, is_full = inflater.unconsumed_tail, len(piece) == _MAX_INFLATED_BYTES
                if inflater.eof:
                    rest, inflater, is_full = inflater.unused_data, None, False
    except zlib.error as error:
        raise invalid(f"Malformed request body: {error}") from error
    if inflater is not None:
        raise invalid(f"Malformed request body: incomplete {encoding} data")


def json_response(value: Any, status: int = 200) -> web.Response:
    """A JSON response of the control API."""
    return web.Response(
        status=status, body=json.dumps(value).encode(), content_type="application/json"
    )
