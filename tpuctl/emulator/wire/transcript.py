"""A record of what is asked and answered, for whoever judges it: `TPUCTL_LOCAL_TRANSCRIPT=FILE`.

One JSON object a line, `rest` or `rpc` as its `kind`. Any number of servers may write to the same
file. Neither tokens nor what objects hold are in it.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

from aiohttp import web

from tpuctl.emulator.wire.http_request import Request

__all__ = ["VARIABLE", "Transcript"]

VARIABLE = "TPUCTL_LOCAL_TRANSCRIPT"
_MAX_TEXT_BYTES = 8 << 20  # a longer body is left out
_OBJECT_HEADER = "X-Goog-Stored-Content-Length"  # a header that the bytes of objects come with
_SECRET = "SECRET"


class Transcript:
    """Appends to a file, each line in one piece, so that lines of several writers never mix."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    @classmethod
    def from_environment(cls) -> Transcript | None:
        """The one that the environment names, if it does."""
        path = os.environ.get(VARIABLE)
        return cls(Path(path)) if path else None

    def add_rest(self, request: Request, query: str, response: web.StreamResponse) -> None:
        """`query` is the text after the question mark. Status 0 stands for no answer at all."""
        answer = None
        if isinstance(response, web.Response) and _OBJECT_HEADER not in response.headers:
            body = b"" if request.verb == "HEAD" else response.body
            answer = _text(bytes(body)) if isinstance(body, bytes | bytearray) else ""
        self._write(
            request.token,
            kind="rest",
            verb=request.verb,
            override=request.raw.headers.get("X-HTTP-Method-Override", ""),
            path=request.path,
            query=query,
            host=request.host,
            type=request.raw.headers.get("Content-Type", ""),
            body=_text(request.content),
            status=response.status,
            answer_type=response.headers.get("Content-Type", ""),
            answer=answer,
        )

    def add_rpc(self, token: str, method: str, data: bytes, status: int, answer: bytes) -> None:
        """Messages as they were on the wire; `status` is the number of a google.rpc.Code."""
        self._write(
            token,
            kind="rpc",
            method=method,
            body=base64.b64encode(data).decode(),
            status=status,
            answer=base64.b64encode(answer).decode(),
        )

    def close(self) -> None:
        os.close(self._file)

    def _write(self, token: str, **line: Any) -> None:
        text = json.dumps(line, ensure_ascii=False)
        if token:
            text = text.replace(f"/t/{token}", "").replace(token, _SECRET)
        os.write(self._file, text.encode("utf-8", "replace") + b"\n")


def _text(data: bytes) -> str | None:
    """What is not text is not written down."""
    if len(data) > _MAX_TEXT_BYTES:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
