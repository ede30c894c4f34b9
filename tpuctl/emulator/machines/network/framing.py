"""Parses HTTP/1.1 requests in a byte stream just enough to rewrite their headers."""

from __future__ import annotations

from enum import Enum, auto

MAX_HEAD_BYTES = 1 << 16
DROPPED_HEADERS = {
    b"x-forwarded-proto",
    b"x-forwarded-for",
    b"proxy-authorization",
    b"proxy-connection",
}


class _Part(Enum):
    HEAD = auto()
    BODY = auto()  # of known length, or a chunk with its line end
    CHUNK_SIZE = auto()
    TRAILER = auto()
    PASSTHROUGH = auto()  # no HTTP any more, to the end: a WebSocket


class RequestFraming:
    """Adds `X-Forwarded-Proto: https` to requests; bodies pass unchanged.

    TensorFlow's uploads have both a Content-Length and a Transfer-Encoding, which strict servers
    reject: next to "chunked" the length is dropped (RFC 9112, section 6.3), and "identity", which
    has no meaning, is dropped itself.
    """

    def __init__(self) -> None:
        self._part = _Part.HEAD
        self._rest = b""  # an incomplete head or line
        self._left = 0
        self._is_chunked = False

    def feed(self, data: bytes) -> list[bytes]:
        """The data to forward. Raises ValueError for anything but HTTP/1.1."""
        out: list[bytes] = []
        view = data
        while view:
            if self._part is _Part.PASSTHROUGH:
                out.append(view)
                break
            if self._part is _Part.BODY:
                body, view = view[: self._left], view[self._left :]
                out.append(body)
                self._left -= len(body)
                if self._left == 0:
                    self._part = _Part.CHUNK_SIZE if self._is_chunked else _Part.HEAD
                continue
            view, self._rest = self._rest + view, b""
            end = b"\r\n\r\n" if self._part is _Part.HEAD else b"\r\n"
            block, separator, after = view.partition(end)
            if not separator:
                if len(view) > MAX_HEAD_BYTES:
                    raise ValueError("headers too large")
                self._rest = view
                break
            view = after
            if self._part is _Part.HEAD:
                out.append(self._change_head(block))
            else:
                out.append(block + separator)
                self._follow_line(block)
        return out

    def _follow_line(self, line: bytes) -> None:
        if self._part is _Part.TRAILER:
            if not line:
                self._part = _Part.HEAD
            return
        size = int(line.partition(b";")[0].strip() or b"x", 16)
        if size:
            self._part, self._left = _Part.BODY, size + 2
        else:
            self._part = _Part.TRAILER

    def _change_head(self, head: bytes) -> bytes:
        request, *lines = head.lstrip(b"\r\n").split(b"\r\n")
        if not request.endswith((b" HTTP/1.1", b" HTTP/1.0")):
            raise ValueError("not HTTP/1.1")
        headers = [(line.partition(b":")[0].strip().lower(), line) for line in lines]
        values = {name: line.partition(b":")[2].strip() for name, line in headers}
        self._is_chunked = b"chunked" in values.get(b"transfer-encoding", b"").lower()
        dropped = DROPPED_HEADERS | {
            b"content-length" if self._is_chunked else b"transfer-encoding"
        }
        if self._is_chunked:
            self._part = _Part.CHUNK_SIZE
        else:
            self._left = int(values.get(b"content-length", b"0"))
            self._part = _Part.BODY if self._left else _Part.HEAD
        if values.get(b"upgrade", b"").lower() == b"websocket":
            self._part = _Part.PASSTHROUGH
        kept_lines = [line for name, line in headers if name not in dropped]
        return b"\r\n".join([request, *kept_lines, b"X-Forwarded-Proto: https", b"", b""])
