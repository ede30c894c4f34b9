"""A transcript of requests and responses, for tests: `TPUCTL_LOCAL_TRANSCRIPT=FILE`.

One JSON object per line, with `rest` or `rpc` as its `kind`. Several servers may write to the same
file. It contains neither tokens nor the data of objects.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from tpuctl.emulator.wire.http_request import Request

VARIABLE = "TPUCTL_LOCAL_TRANSCRIPT"
_MAX_TEXT_BYTES = 8 << 20  # longer bodies are left out
_OBJECT_HEADER = "X-Goog-Stored-Content-Length"  # present in responses with objects' data
_SECRET = "SECRET"


class Transcript:
    """Appends lines to a file atomically, so that lines of several writers never mix."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    @classmethod
    def from_environment(cls) -> Transcript | None:
        """The transcript that the environment names, if any."""
        path = os.environ.get(VARIABLE)
        return cls(Path(path)) if path else None

    def add_rest(self, request: Request, query: str, response: web.StreamResponse) -> None:
        """`query` is the text after the question mark. Status 0 means no response."""
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
            client=_client(request.raw.headers),
            type=request.raw.headers.get("Content-Type", ""),
            body=_text(request.content),
            status=response.status,
            answer_type=response.headers.get("Content-Type", ""),
            answer=answer,
        )

    def add_rpc(
        self,
        token: str,
        method: str,
        data: bytes,
        status: int,
        answer: bytes,
        headers: Mapping[str, str],
    ) -> None:
        """Serialized messages; `status` is the number of a google.rpc.Code."""
        self._write(
            token,
            kind="rpc",
            method=method,
            client=_client(headers),
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


def _client(headers: Mapping[str, str]) -> str:
    """How the client calls itself: Google's name their libraries."""
    return headers.get("x-goog-api-client") or headers.get("user-agent") or ""


def _text(data: bytes) -> str | None:
    """The data as text; None if it is too long or not UTF-8."""
    if len(data) > _MAX_TEXT_BYTES:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
