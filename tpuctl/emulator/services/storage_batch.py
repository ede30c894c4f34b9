"""Batches: several requests to the JSON API in one multipart body."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from email.message import Message
from email.parser import BytesParser
from http.client import responses
from urllib.parse import parse_qs, unquote, urlsplit

from aiohttp import web

from tpuctl.emulator.http import Request
from tpuctl.emulator.services.storage_common import Answer, Call, NotModified
from tpuctl.emulator.status import ApiError, invalid

__all__ = ["answer_batch"]

_MOST_CALLS = 100
_BOUNDARY = "batch_local_cloud"


async def answer_batch(
    request: Request, answer: Callable[[Call], Awaitable[Answer]]
) -> web.StreamResponse:
    """Answer each part by itself; one that fails does not touch the others."""
    header = request.raw.headers.get("Content-Type", "")
    body = await request.read()
    message = BytesParser().parsebytes(
        b"Content-Type: " + header.encode("latin-1") + b"\r\nMIME-Version: 1.0\r\n\r\n" + body
    )
    parts = message.get_payload()
    if not message.is_multipart() or not isinstance(parts, list):
        raise invalid("Failed to parse batch request, error: missing boundary")
    if len(parts) > _MOST_CALLS:
        raise invalid(f"The batch request has more than {_MOST_CALLS} calls.")
    pieces = []
    for part in parts:
        content = part.get_payload(decode=True) if isinstance(part, Message) else None
        if not isinstance(part, Message) or not isinstance(content, bytes):
            raise invalid("Failed to parse batch request.")
        status, text = await _answer_part(request, content, answer)
        identity = str(part.get("Content-ID", "")).strip("<>")
        pieces.append(
            f"--{_BOUNDARY}\r\nContent-Type: application/http\r\n"
            + (f"Content-ID: <response-{identity}>\r\n" if identity else "")
            + f"\r\nHTTP/1.1 {status} {responses.get(status, 'Unknown')}\r\n"
            "Content-Type: application/json; charset=UTF-8\r\n"
            f"Content-Length: {len(text.encode())}\r\n\r\n{text}\r\n"
        )
    whole = "".join(pieces) + f"--{_BOUNDARY}--\r\n"
    return web.Response(
        body=whole.encode(),
        headers={"Content-Type": f"multipart/mixed; boundary={_BOUNDARY}"},
    )


async def _answer_part(
    request: Request, content: bytes, answer: Callable[[Call], Awaitable[Answer]]
) -> tuple[int, str]:
    try:
        call = _parse(request, content)
        result = await answer(call)
    except NotModified:
        return 304, ""
    except ApiError as error:
        return error.http, error.as_json("legacy").decode()
    return result.status, "" if result.value is None else json.dumps(result.value)


def _parse(request: Request, content: bytes) -> Call:
    head, _, body = content.replace(b"\r\n", b"\n").partition(b"\n\n")
    found = re.match(rb"\s*([A-Z]+) (\S+)(?: HTTP/[\d.]+)?", head)
    if found is None:
        raise invalid("Failed to parse batch request: a part has no request line.")
    url = urlsplit(found[2].decode("latin-1"))
    path = url.path.removeprefix(request.prefix)
    parts = path.removeprefix("/storage/v1").strip("/").split("/")
    return Call(
        verb=found[1].decode(),
        parts=[unquote(part) for part in parts],
        query=parse_qs(url.query, keep_blank_values=True),
        body=body,
        base_url=request.base_url,
        email=request.email,
    )
