"""Copies of objects through the XML API: cloud.google.com/storage/docs/xml-api/put-object-copy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from urllib.parse import unquote

from aiohttp import web

from tpuctl.emulator.state.errors import invalid
from tpuctl.emulator.storage.objects.copies import Copies
from tpuctl.emulator.storage.objects.objects import DEFAULT_TYPE, Objects
from tpuctl.emulator.storage.objects.unsupported import check_headers
from tpuctl.emulator.storage.requests.primitives import Call
from tpuctl.emulator.storage.transfers.download import media_headers
from tpuctl.emulator.storage.transfers.uploads import resource_of_headers
from tpuctl.emulator.storage.xml_api.xml_documents import document
from tpuctl.emulator.wire.http_request import Request

_SOURCE = "x-goog-copy-source"
_DIRECTIVE = "x-goog-metadata-directive"
# Of the source, as parameters of the JSON API. Conditions on its ETag and time are not emulated.
_CONDITIONS = {
    f"{_SOURCE}-generation": "sourceGeneration",
    f"{_SOURCE}-if-generation-match": "ifSourceGenerationMatch",
    f"{_SOURCE}-if-metageneration-match": "ifSourceMetagenerationMatch",
}


@dataclass(frozen=True)
class CopySource:
    """The object that a request copies."""

    bucket: str
    name: str

    @classmethod
    def of(cls, request: Request) -> CopySource | None:
        """None if the request copies nothing. Raises ApiError if it names no object."""
        text = request.raw.headers.get(_SOURCE)
        if text is None or request.verb != "PUT":
            return None
        bucket, _, name = unquote(text).removeprefix("/").partition("/")
        if not bucket or not name:
            raise invalid(f"{_SOURCE} {text} is not BUCKET/OBJECT.", reason="InvalidArgument")
        return cls(bucket, name)


def copy(
    request: Request, source: CopySource, bucket: str, name: str, copies: Copies, objects: Objects
) -> web.Response:
    """Copy an object with its metadata or, as the request directs, with the request's."""
    headers = request.raw.headers
    used = {_SOURCE, _DIRECTIVE, *_CONDITIONS}
    check_headers({key: value for key, value in headers.items() if key.lower() not in used})
    directive = headers.get(_DIRECTIVE, "COPY")
    if directive not in ("COPY", "REPLACE"):
        raise invalid(f"{_DIRECTIVE} is COPY or REPLACE.", reason="InvalidArgument")
    resource = {}
    if directive == "REPLACE":
        resource = {"contentType": DEFAULT_TYPE, **resource_of_headers({}, request)}
    conditions = {key: [headers[name]] for name, key in _CONDITIONS.items() if name in headers}
    answer = copies.copy(
        Call(
            verb="POST",
            parts=["b", source.bucket, "o", source.name, "copyTo", "b", bucket, "o", name],
            query={**request.query, **conditions},
            body=json.dumps(resource).encode(),
            base_url=request.base_url,
            caller=request.caller,
            headers=headers,
        )
    )
    generation = {"generation": [answer.value["generation"]]}
    etag = media_headers(objects.load(generation, bucket, name), is_xml=True)["ETag"]
    elements = [("LastModified", answer.value["updated"]), ("ETag", etag)]
    return document("CopyObjectResult", elements)
