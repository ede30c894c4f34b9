"""The XML API, as far as clients without the JSON one need it: whole objects by their path."""

from __future__ import annotations

from urllib.parse import unquote
from xml.sax.saxutils import escape

from aiohttp import web

from tpuctl.emulator.http import Request
from tpuctl.emulator.services.storage_common import NO_SUCH_BUCKET, NotModified, no_such_object
from tpuctl.emulator.services.storage_media import media_headers, send_media
from tpuctl.emulator.services.storage_objects import Objects
from tpuctl.emulator.services.storage_uploads import Uploads
from tpuctl.emulator.status import ApiError

__all__ = ["Xml"]

_CODES = {
    400: "InvalidArgument",
    403: "AccessDenied",
    404: "NoSuchKey",
    409: "Conflict",
    412: "PreconditionFailed",
    501: "NotImplemented",
}
_CONDITIONS = {
    "x-goog-if-generation-match": "ifGenerationMatch",
    "x-goog-if-metageneration-match": "ifMetagenerationMatch",
}


class Xml:
    """GET, HEAD, PUT and DELETE of `/BUCKET/OBJECT`."""

    def __init__(self, objects: Objects, uploads: Uploads) -> None:
        self._objects = objects
        self._uploads = uploads

    async def handle(self, request: Request, bucket: str, rest: str) -> web.StreamResponse:
        """`rest` is the object's name, percent-encoded."""
        name = unquote(rest)
        for header, key in _CONDITIONS.items():
            if header in request.raw.headers:
                request.query[key] = [request.raw.headers[header]]
        try:
            return await self._answer(request, bucket, name)
        except NotModified:
            return web.Response(status=304)
        except ApiError as error:
            code = _CODES.get(error.http, "InternalError")
            if error.message == NO_SUCH_BUCKET:
                code = "NoSuchBucket"
            text = (
                "<?xml version='1.0' encoding='UTF-8'?><Error>"
                f"<Code>{code}</Code><Message>{escape(error.message)}</Message></Error>"
            )
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
            stored = self._objects.must(request.query, bucket, name, is_read=True)
            with self._objects.files.open(stored.file) as file:
                return await send_media(request, stored, file)
        if request.verb == "PUT":
            stored = await self._uploads.receive_simple(request, bucket, name)
            headers = media_headers(stored)
            headers.pop("Content-Type")
            return web.Response(status=200, headers=headers)
        if request.verb == "DELETE":
            if self._objects.find(bucket, name) is None:
                raise no_such_object(bucket, name)
            self._objects.remove(request.query, bucket, name)
            return web.Response(status=204)
        raise ApiError("UNIMPLEMENTED", f"storage.xml {request.verb} is not implemented.")
