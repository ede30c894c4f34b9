"""The XML API, as far as clients without the JSON one need it: whole objects by their path."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from urllib.parse import unquote
from xml.sax.saxutils import escape

from aiohttp import web

from tpuctl.emulator.http import Request
from tpuctl.emulator.services.storage_common import NO_SUCH_BUCKET, NotModified
from tpuctl.emulator.services.storage_media import media_headers, send_media
from tpuctl.emulator.services.storage_objects import Objects
from tpuctl.emulator.services.storage_uploads import Uploads
from tpuctl.emulator.status import ApiError

__all__ = ["Xml"]

_CODES = {
    400: "InvalidArgument",
    403: "AccessDenied",
    404: "NoSuchKey",
    408: "RequestTimeout",
    409: "Conflict",
    412: "PreconditionFailed",
    429: "SlowDown",
    501: "NotImplemented",
    503: "ServiceUnavailable",
}
_CONDITIONS = {
    "x-goog-if-generation-match": "ifGenerationMatch",
    "x-goog-if-metageneration-match": "ifMetagenerationMatch",
    "If-Match": "If-Match",
    "If-None-Match": "If-None-Match",
}
# kmoneil/zig-gcp measured these (src/storage/retention.zig).
_KEPT = {
    "retentionPolicyNotMet": (
        "RetentionPolicyNotMet",
        "Object overwrite or deletion is not allowed due to retention policy.",
    ),
    "hold": (
        "ObjectUnderActiveHold",
        "Object overwrite or deletion is not allowed due to active hold on the object.",
    ),
}
# Its methods, by what the JSON API calls the same.
_METHODS = {
    "GET": "objects.get",
    "HEAD": "objects.get",
    "PUT": "objects.insert",
    "DELETE": "objects.delete",
}
Carry = Callable[..., AbstractAsyncContextManager[None]]


class Xml:
    """GET, HEAD, PUT and DELETE of `/BUCKET/OBJECT`."""

    def __init__(self, objects: Objects, uploads: Uploads, carry: Carry) -> None:
        """`carry` is what every call passes through, by its method, caller and names."""
        self._carry = carry
        self._objects = objects
        self._uploads = uploads

    async def handle(self, request: Request, bucket: str, rest: str) -> web.StreamResponse:
        """`rest` is the object's name, percent-encoded."""
        name = unquote(rest)
        for header, key in _CONDITIONS.items():
            if header in request.raw.headers:
                request.query[key] = [request.raw.headers[header]]
        method = _METHODS.get(request.verb, f"xml.{request.verb}")
        kind = {"streams": request.verb in ("GET", "HEAD"), "uploads": request.verb == "PUT"}
        try:
            async with self._carry(method, request.caller, bucket, name, **kind):
                return await self._answer(request, bucket, name)
        except NotModified:
            return web.Response(status=304)
        except ApiError as error:
            if error.is_page:
                raise
            text = _told(error)
            return web.Response(
                status=error.http,
                body=b"" if request.verb == "HEAD" else text.encode(),
                content_type="application/xml",
                charset="UTF-8",
            )

    async def _answer(self, request: Request, bucket: str, name: str) -> web.StreamResponse:
        if not name:
            raise ApiError("UNIMPLEMENTED", "Buckets are served by the JSON API alone.")
        if request.verb in ("GET", "HEAD"):
            stored = self._objects.must(request.query, bucket, name)
            with self._objects.files.open(stored.file) as file:
                return await send_media(request, stored, file)
        if request.verb == "PUT":
            stored = await self._uploads.receive_simple(request, bucket, name)
            headers = media_headers(stored)
            headers.pop("Content-Type")
            return web.Response(status=200, headers=headers)
        if request.verb == "DELETE":
            self._objects.remove(request.query, bucket, name)
            return web.Response(status=204)
        raise ApiError("UNIMPLEMENTED", f"storage.xml {request.verb} is not implemented.")


def _told(error: ApiError) -> str:
    code, text, details = _CODES.get(error.http, "InternalError"), error.message, ""
    is_held = error.reason == "forbidden" and " is under active " in text
    if is_held or error.reason in _KEPT:
        details = text
        code, text = _KEPT["hold" if is_held else error.reason]
    elif error.message == NO_SUCH_BUCKET:
        code = "NoSuchBucket"
    elif code == "NoSuchKey":
        text, details = "The specified key does not exist.", text
    elif code == "AccessDenied":  # google-github-actions/setup-gcloud#49
        text, details = "Access denied.", text
    more = f"<Details>{escape(details)}</Details>" if details else ""
    return (
        "<?xml version='1.0' encoding='UTF-8'?><Error>"
        f"<Code>{code}</Code><Message>{escape(text)}</Message>{more}</Error>"
    )
