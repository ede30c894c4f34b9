"""Downloads: the bytes of objects, whole or in ranges, in constant memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from email.utils import format_datetime
from typing import BinaryIO

from aiohttp import web

from tpuctl.emulator.http import Request
from tpuctl.emulator.services.storage_common import CHUNK, etag_of
from tpuctl.emulator.services.storage_objects import Stored

__all__ = ["media_headers", "send_media"]

_RANGE = re.compile(r"bytes=(?:(\d+)-(\d*)|-(\d+))")
_PASSED = {
    "cacheControl": "Cache-Control",
    "contentEncoding": "Content-Encoding",
    "contentDisposition": "Content-Disposition",
    "contentLanguage": "Content-Language",
}


def media_headers(stored: Stored) -> dict[str, str]:
    """What GET and HEAD tell of an object."""
    hashes = f"crc32c={stored.body['crc32c']}"
    if stored.body.get("md5Hash"):
        hashes += f",md5={stored.body['md5Hash']}"
    updated = datetime.fromisoformat(stored.body["updated"])
    headers = {
        "Content-Type": str(stored.body.get("contentType", "application/octet-stream")),
        "Accept-Ranges": "bytes",
        "ETag": etag_of(*stored.state),
        "Last-Modified": format_datetime(updated, usegmt=True),
        "X-Goog-Hash": hashes,
        "X-Goog-Generation": str(stored.generation),
        "X-Goog-Metageneration": str(stored.metageneration),
        "X-Goog-Storage-Class": str(stored.body["storageClass"]),
        "X-Goog-Stored-Content-Encoding": str(stored.body.get("contentEncoding", "identity")),
        "X-Goog-Stored-Content-Length": str(stored.size),
    }
    for field, header in _PASSED.items():
        if stored.body.get(field):
            headers[header] = str(stored.body[field])
    for key, value in (stored.body.get("metadata") or {}).items():
        text = f"{key}{value}"
        if text.isascii() and text.isprintable() and re.fullmatch(r"[\w.-]+", key):
            headers[f"X-Goog-Meta-{key}"] = str(value)
    return headers


async def send_media(request: Request, stored: Stored, file: BinaryIO) -> web.StreamResponse:
    """Answer with the object's bytes, or the part that a Range header asks for."""
    headers = media_headers(stored)
    status, first, last = 200, 0, stored.size - 1
    wanted = _parse_range(request.raw.headers, stored.size)
    if wanted is not None:
        first, last = wanted
        if first > last:
            return web.Response(
                status=416,
                text="The requested range cannot be satisfied.",
                headers={"Content-Range": f"bytes */{stored.size}"},
            )
        status = 206
        headers["Content-Range"] = f"bytes {first}-{last}/{stored.size}"
    left = last - first + 1
    headers["Content-Length"] = str(left)
    response = web.StreamResponse(status=status, headers=headers)
    await response.prepare(request.raw)
    if request.verb != "HEAD":
        file.seek(first)
        while left > 0:
            chunk = file.read(min(CHUNK, left))
            if not chunk:
                raise ConnectionResetError("the object's file is shorter than its size")
            left -= len(chunk)
            await response.write(chunk)
    await response.write_eof()
    return response


def _parse_range(headers: Mapping[str, str], size: int) -> tuple[int, int] | None:
    """First and last byte; None for the whole; first > last for what cannot be satisfied."""
    found = _RANGE.fullmatch(headers.get("Range", "").strip())
    if found is None:
        return None
    if found[3] is not None:
        count = int(found[3])
        return (max(size - count, 0), size - 1) if count and size else (1, 0)
    first = int(found[1])
    last = min(int(found[2]), size - 1) if found[2] else size - 1
    if found[2] and int(found[2]) < first:
        return None  # not a range at all: ignored, as RFC 9110 has it
    return (first, last) if first < size else (1, 0)
