"""Downloads: the bytes of objects, whole or in ranges, in constant memory."""

from __future__ import annotations

import asyncio
import gzip
import re
import zlib
from collections.abc import Mapping
from datetime import datetime
from email.utils import format_datetime
from typing import BinaryIO

from aiohttp import web

from tpuctl.emulator.faults.http_exchange import hang_up
from tpuctl.emulator.faults.traffic import Cut
from tpuctl.emulator.state.errors import invalid
from tpuctl.emulator.storage.object_row import Stored
from tpuctl.emulator.storage.primitives import CHUNK, etag_of
from tpuctl.emulator.wire.http_request import Request

__all__ = ["media_headers", "send_media"]

_RANGE = re.compile(r"bytes=(?:(\d+)-(\d*)|-(\d+))")
_TOO_SHORT = "the object's file is shorter than its size"
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
    """Answer with the object's bytes, or the part that a Range header asks for.

    What is stored compressed is expanded for whoever does not take it so, whole and whatever range
    was asked for: cloud.google.com/storage/docs/transcoding.
    """
    headers = media_headers(stored)
    if _is_to_be_expanded(request.raw.headers, stored):
        return await _send_expanded(request, stored, file, headers)
    status, first, last = 200, 0, stored.size - 1
    byte_range = _parse_range(request.raw.headers, stored.size)
    if byte_range is not None:
        first, last = byte_range
        if first > last:
            return web.Response(
                status=416,
                text="Request range not satisfiable",
                headers={"Content-Range": f"bytes */{stored.size}"},
            )
        status = 206
        headers["Content-Range"] = f"bytes {first}-{last}/{stored.size}"
        if last - first + 1 < stored.size:
            # kmoneil/zig-gcp measured it: docs/storage/emulator.md.
            del headers["X-Goog-Hash"]
    left = last - first + 1
    file.seek(first)
    if left <= CHUNK and request.verb != "HEAD":  # in one piece with its headers
        data = file.read(left)
        if len(data) < left:
            raise ConnectionResetError(_TOO_SHORT)
        return web.Response(status=status, headers=headers, body=data)
    headers["Content-Length"] = str(left)
    response = web.StreamResponse(status=status, headers=headers)
    await response.prepare(request.raw)
    limit = request.exchange.limit("answer", left)
    transport = request.raw.transport
    if request.verb != "HEAD" and limit is None and isinstance(transport, asyncio.Transport):
        sent_bytes = await asyncio.get_running_loop().sendfile(transport, file, first, left)
        if sent_bytes < left:
            raise ConnectionResetError(_TOO_SHORT)
    elif request.verb != "HEAD":
        await _send_in_pieces(request, response, file, left, limit)
    await response.write_eof()
    return response


async def _send_in_pieces(
    request: Request, response: web.StreamResponse, file: BinaryIO, left: int, limit: int | None
) -> None:
    """What a fault may cut after so many bytes."""
    while left > 0:
        chunk = file.read(min(CHUNK, left, left if limit is None else limit))
        if not chunk and limit != 0:
            raise ConnectionResetError(_TOO_SHORT)
        left -= len(chunk)
        await response.write(chunk)
        if limit is None:
            continue
        limit -= len(chunk)
        if limit == 0:
            if request.exchange.strikes("answer"):
                await hang_up(request.raw)
                raise Cut
            limit = None


def _is_to_be_expanded(headers: Mapping[str, str], stored: Stored) -> bool:
    if str(stored.body.get("contentEncoding", "")).lower() != "gzip":
        return False
    is_fixed = "no-transform" in str(stored.body.get("cacheControl", "")).lower()
    return not is_fixed and "gzip" not in headers.get("Accept-Encoding", "").lower()


async def _send_expanded(
    request: Request, stored: Stored, file: BinaryIO, headers: dict[str, str]
) -> web.StreamResponse:
    del headers["Content-Encoding"], headers["Accept-Ranges"]
    headers["Vary"] = "Accept-Encoding"
    headers["Warning"] = "214 UploadServer gunzipped"
    headers["X-GUploader-Response-Body-Transformations"] = "gunzipped"
    whole = gzip.GzipFile(fileobj=file)
    try:
        chunk = await asyncio.to_thread(whole.read, CHUNK)
    except (OSError, EOFError, zlib.error) as error:
        # That it is refused so, zig-gcp measured (docs/storage/checksums-and-compression.md).
        raise invalid("Bad Request") from error
    response = web.StreamResponse(status=200, headers=headers)
    await response.prepare(request.raw)
    if request.verb != "HEAD":
        while chunk:
            await response.write(chunk)
            try:
                chunk = await asyncio.to_thread(whole.read, CHUNK)
            except (OSError, EOFError, zlib.error) as error:
                raise ConnectionResetError("the object is compressed in part only") from error
    await response.write_eof()
    return response


def _parse_range(headers: Mapping[str, str], size: int) -> tuple[int, int] | None:
    """First and last byte; None for the whole; first > last for what cannot be satisfied."""
    match = _RANGE.fullmatch(headers.get("Range", "").strip())
    if match is None:
        return None
    if match[3] is not None:
        count = int(match[3])
        return (max(size - count, 0), size - 1) if count and size else (1, 0)
    first = int(match[1])
    last = min(int(match[2]), size - 1) if match[2] else size - 1
    if match[2] and int(match[2]) < first:
        return None  # not a range at all: ignored, as RFC 9110 has it
    return (first, last) if first < size else (1, 0)
