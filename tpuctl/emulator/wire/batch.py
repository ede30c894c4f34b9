"""Batches: several requests to one API in a multipart body."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from http.client import responses
from urllib.parse import parse_qs, urlsplit

from aiohttp import web

from tpuctl.emulator.state.errors import ApiError, invalid

_MAX_CALLS = 100
_BOUNDARY = "batch_local_cloud"


@dataclass(frozen=True)
class Part:
    """One request of a batch."""

    verb: str
    path: str
    query: Mapping[str, list[str]]
    body: bytes
    headers: Mapping[str, str]  # with lowercase names


async def answer_batch(
    content_type: str,
    body: bytes,
    prefix: str,
    answer: Callable[[Part], Awaitable[tuple[int, str]]],
) -> web.StreamResponse:
    """Answer each part with a status and a text; a failed part does not affect the others.

    `prefix` is a path prefix to remove, if present.
    """
    message = BytesParser().parsebytes(
        b"Content-Type: " + content_type.encode("latin-1") + b"\r\nMIME-Version: 1.0\r\n\r\n" + body
    )
    parts = message.get_payload()
    if not message.is_multipart() or not isinstance(parts, list):
        raise invalid("Failed to parse batch request, error: missing boundary")
    if len(parts) > _MAX_CALLS:
        raise invalid(f"The batch request has more than {_MAX_CALLS} calls.")
    responses_text = []
    for part in parts:
        content = part.get_payload(decode=True) if isinstance(part, Message) else None
        if not isinstance(part, Message) or not isinstance(content, bytes):
            raise invalid("Failed to parse batch request.")
        try:
            status, text = await answer(_parse(content, prefix))
        except ApiError as error:
            status, text = error.http, error.as_json("legacy").decode()
        identity = str(part.get("Content-ID", "")).strip("<>")
        responses_text.append(
            f"--{_BOUNDARY}\r\nContent-Type: application/http\r\n"
            + (f"Content-ID: <response-{identity}>\r\n" if identity else "")
            + f"\r\nHTTP/1.1 {status} {responses.get(status, 'Unknown')}\r\n"
            "Content-Type: application/json; charset=UTF-8\r\n"
            f"Content-Length: {len(text.encode())}\r\n\r\n{text}\r\n"
        )
    whole = "".join(responses_text) + f"--{_BOUNDARY}--\r\n"
    return web.Response(
        body=whole.encode(),
        headers={"Content-Type": f"multipart/mixed; boundary={_BOUNDARY}"},
    )


def _parse(content: bytes, prefix: str) -> Part:
    head, _, body = content.replace(b"\r\n", b"\n").partition(b"\n\n")
    match = re.match(rb"\s*([A-Z]+) (\S+)(?: HTTP/[\d.]+)?", head)
    if match is None:
        raise invalid("Failed to parse batch request: a part has no request line.")
    url = urlsplit(match[2].decode("latin-1"))
    return Part(
        verb=match[1].decode(),
        path=url.path.removeprefix(prefix),
        query=parse_qs(url.query, keep_blank_values=True),
        body=body,
        headers={
            name.decode("latin-1").strip().lower(): value.decode("latin-1").strip()
            for name, _, value in (line.partition(b":") for line in head.split(b"\n")[1:])
        },
    )
