"""Downloads of whole objects or ranges, in constant memory."""

from __future__ import annotations

import asyncio
import base64
import gzip
import re
import zlib
from collections.abc import Mapping
from datetime import datetime
from email.utils import format_datetime
from typing import BinaryIO

from aiohttp import web

from tpuctl.emulator.faults.http_exchange import hang_up
from tpuctl.emulator.faults.traffic import ConnectionCut
from tpuctl.emulator.state.errors import invalid
from tpuctl.emulator.storage.buckets.encryption import (
    encryption_headers,
    key_hash,
    key_of,
    require_key,
)
from tpuctl.emulator.storage.objects.object_row import StoredObject
from tpuctl.emulator.storage.requests.primitives import CHUNK, etag_of
from tpuctl.emulator.wire.http_request import Request

_RANGE = re.compile(r"bytes=(?:(\d+)-(\d*)|-(\d+))")
_GZIP = re.compile(r"(?i)\bgzip\b(?:\s*;\s*q=([01](?:\.\d{0,3})?))?")
_TOO_SHORT = "the object's file is shorter than its size"
_HEADER_BY_FIELD = {
    "cacheControl": "Cache-Control",
    "contentEncoding": "Content-Encoding",
    "contentDisposition": "Content-Disposition",
    "contentLanguage": "Content-Language",
    "customTime": "X-Goog-Custom-Time",
}
# Of the XML API: cloud.google.com/storage/docs/xml-api/reference-headers.
_HEADER_BY_PARAMETER = {
    "response-content-disposition": "Content-Disposition",
    "response-content-type": "Content-Type",
}


def media_headers(stored: StoredObject, *, is_xml: bool = False) -> dict[str, str]:
    """The response headers of GET and HEAD; only the XML API's ETag is the content's."""
    md5 = stored.body.get("md5Hash") if is_xml and not key_of(stored.body) else None
    etag = f'"{base64.b64decode(md5).hex()}"' if md5 else etag_of(*stored.state)
    hashes = f"crc32c={stored.body['crc32c']}"
    if stored.body.get("md5Hash"):
        hashes += f",md5={stored.body['md5Hash']}"
    updated = datetime.fromisoformat(stored.body["updated"])
    headers = {
        "Content-Type": str(stored.body.get("contentType", "application/octet-stream")),
        "Accept-Ranges": "bytes",
        "ETag": etag,
        "Last-Modified": format_datetime(updated, usegmt=True),
        "X-Goog-Hash": hashes,
        "X-Goog-Generation": str(stored.generation),
        "X-Goog-Metageneration": str(stored.metageneration),
        "X-Goog-Storage-Class": str(stored.body["storageClass"]),
        "X-Goog-Stored-Content-Encoding": str(stored.body.get("contentEncoding", "identity")),
        "X-Goog-Stored-Content-Length": str(stored.size),
    }
    headers |= encryption_headers(stored.body)
    for field, header in _HEADER_BY_FIELD.items():
        if stored.body.get(field):
            headers[header] = str(stored.body[field])
    for key, value in (stored.body.get("metadata") or {}).items():
        text = f"{key}{value}"
        if text.isascii() and text.isprintable() and re.fullmatch(r"[\w.-]+", key):
            headers[f"X-Goog-Meta-{key}"] = str(value)
    return headers


async def send_media(
    request: Request, stored: StoredObject, file: BinaryIO, *, is_xml: bool = False
) -> web.StreamResponse:
    """Send the object's bytes, or the range of the Range header.

    Gzipped objects are decompressed for clients that do not accept gzip, ignoring any range:
    cloud.google.com/storage/docs/transcoding.
    """
    require_key(stored.body, key_hash(request.raw.headers))
    headers = media_headers(stored, is_xml=is_xml)
    if is_xml:
        headers |= {
            header: request.param(name)
            for name, header in _HEADER_BY_PARAMETER.items()
            if request.param(name)
        }
    if _should_decompress(request.raw.headers, stored):
        return await _send_decompressed(request, stored, file, headers)
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
        if last - first + 1 < stored.size and not is_xml:
            # Measured by kmoneil/zig-gcp: docs/storage/emulator.md. The XML API sends the whole
            # object's: google/go-cloud, blob/gcsblob's TestRead.
            del headers["X-Goog-Hash"]
    remaining = last - first + 1
    file.seek(first)
    if remaining <= CHUNK and request.verb != "HEAD":  # in one write with the headers
        data = file.read(remaining)
        if len(data) < remaining:
            raise ConnectionResetError(_TOO_SHORT)
        return web.Response(status=status, headers=headers, body=data)
    headers["Content-Length"] = str(remaining)
    response = web.StreamResponse(status=status, headers=headers)
    await response.prepare(request.raw)
    limit = request.exchange.limit("response", remaining)
    transport = request.raw.transport
    if request.verb != "HEAD" and limit is None and isinstance(transport, asyncio.Transport):
        sent_bytes = await asyncio.get_running_loop().sendfile(transport, file, first, remaining)
        if sent_bytes < remaining:
            raise ConnectionResetError(_TOO_SHORT)
    elif request.verb != "HEAD":
        await _send_chunks(request, response, file, remaining, limit)
    await response.write_eof()
    return response


async def _send_chunks(
    request: Request,
    response: web.StreamResponse,
    file: BinaryIO,
    remaining: int,
    limit: int | None,
) -> None:
    """Send in chunks, as a fault may cut the response after `limit` bytes."""
    while remaining > 0:
        chunk = file.read(min(CHUNK, remaining, remaining if limit is None else limit))
        if not chunk and limit != 0:
            raise ConnectionResetError(_TOO_SHORT)
        remaining -= len(chunk)
        await response.write(chunk)
        if limit is None:
            continue
        limit -= len(chunk)
        if limit == 0:
            if request.exchange.trigger("response"):
                await hang_up(request.raw)
                raise ConnectionCut
            limit = None


def _should_decompress(headers: Mapping[str, str], stored: StoredObject) -> bool:
    if str(stored.body.get("contentEncoding", "")).lower() != "gzip":
        return False
    forbids_transform = "no-transform" in str(stored.body.get("cacheControl", "")).lower()
    accepted = _GZIP.search(headers.get("Accept-Encoding", ""))
    return not forbids_transform and (accepted is None or float(accepted[1] or 1) == 0)


async def _send_decompressed(
    request: Request, stored: StoredObject, file: BinaryIO, headers: dict[str, str]
) -> web.StreamResponse:
    del headers["Content-Encoding"], headers["Accept-Ranges"]
    headers["Vary"] = "Accept-Encoding"
    headers["Warning"] = "214 UploadServer gunzipped"
    headers["X-GUploader-Response-Body-Transformations"] = "gunzipped"
    decompressed = gzip.GzipFile(fileobj=file)
    try:
        chunk = await asyncio.to_thread(decompressed.read, CHUNK)
    except (OSError, EOFError, zlib.error) as error:
        # The error as measured by zig-gcp (docs/storage/checksums-and-compression.md).
        raise invalid("Bad Request") from error
    response = web.StreamResponse(status=200, headers=headers)
    await response.prepare(request.raw)
    if request.verb != "HEAD":
        while chunk:
            await response.write(chunk)
            try:
                chunk = await asyncio.to_thread(decompressed.read, CHUNK)
            except (OSError, EOFError, zlib.error) as error:
                raise ConnectionResetError("the object is only partly compressed") from error
    await response.write_eof()
    return response


def _parse_range(headers: Mapping[str, str], size: int) -> tuple[int, int] | None:
    """First and last byte; None for the whole object; first > last if not satisfiable."""
    match = _RANGE.fullmatch(headers.get("Range", "").strip())
    if match is None:
        return None
    if match[3] is not None:
        count = int(match[3])
        return (max(size - count, 0), size - 1) if count and size else (1, 0)
    first = int(match[1])
    last = min(int(match[2]), size - 1) if match[2] else size - 1
    if match[2] and int(match[2]) < first:
        return None  # invalid, to be ignored by RFC 9110
    return (first, last) if first < size else (1, 0)
