"""The multipart/related body of an upload: metadata, followed by data of any size."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from tpuctl.emulator.state.errors import invalid
from tpuctl.emulator.storage.requests.primitives import CHUNK

MAX_METADATA_BYTES = 1024 * 1024
_HEAD_END = rb"^\r?\n|(?:\r?\n){2}"  # an empty line, which may be the first


class MultipartBody:
    """The two parts of a multipart/related body, the second as a stream.

    Clients use different line ends: CRLF, or LF as gcloud, gsutil and gcsfs do. The line end after
    the first delimiter is the message's: exactly that precedes the last delimiter, and anything
    before it, such as a CR, is content.
    """

    _TAIL = 4096  # held back: may contain the closing delimiter

    def __init__(self, chunks: AsyncIterator[bytes], boundary: bytes) -> None:
        self._chunks = chunks
        self._delimiter = b"--" + boundary
        self._buffer = bytearray()
        self._line_end = b"\r\n"

    async def _read_more(self) -> bool:
        chunk = await anext(self._chunks, None)
        if chunk is None:
            return False
        self._buffer += chunk
        return True

    async def _read_until(self, pattern: bytes) -> tuple[bytes, bytes]:
        """Consume everything up to a match; returns the data before it, and the match."""
        compiled = re.compile(pattern)
        while (separator := compiled.search(self._buffer)) is None:
            if len(self._buffer) > MAX_METADATA_BYTES:
                raise invalid("Metadata part is too large.")  # so Node's client expects it
            if not await self._read_more():
                raise invalid("Malformed multipart body.")
        before, match = bytes(self._buffer[: separator.start()]), separator[0]
        del self._buffer[: separator.end()]
        return before, bytes(match)

    async def read_metadata(self) -> bytes:
        delimiter = re.escape(self._delimiter)
        _, first = await self._read_until(delimiter + rb"[ \t]*\r?\n")
        self._line_end = b"\r\n" if first.endswith(b"\r\n") else b"\n"
        await self._read_until(_HEAD_END)
        metadata, _ = await self._read_until(rb"\r?\n" + delimiter + rb"[ \t]*\r?\n")
        return metadata

    async def read_media_type(self) -> str:
        head, _ = await self._read_until(_HEAD_END)
        match = re.search(rb"(?im)^content-type:[ \t]*([^\r\n]+)", head)
        return match[1].decode("latin-1").strip() if match else ""

    async def media(self) -> AsyncIterator[bytes]:
        while await self._read_more():
            if len(self._buffer) > self._TAIL + CHUNK:
                ready = len(self._buffer) - self._TAIL
                yield bytes(self._buffer[:ready])
                del self._buffer[:ready]
        end = self._buffer.rfind(self._delimiter + b"--")
        if end < 0:
            raise invalid("Malformed multipart body: missing closing delimiter.")
        content = bytes(self._buffer[:end])
        is_own = content.endswith(self._line_end)
        yield content.removesuffix(self._line_end if is_own else b"\n")
