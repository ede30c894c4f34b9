"""The XML API's methods for objects and buckets that clients without the JSON API need."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from urllib.parse import unquote

from aiohttp import web

from tpuctl.emulator.iam.tokens import AccessTokens
from tpuctl.emulator.state.errors import ApiError, unimplemented
from tpuctl.emulator.storage.objects.copies import Copies
from tpuctl.emulator.storage.objects.object_row import StoredObject
from tpuctl.emulator.storage.objects.objects import Objects, object_body
from tpuctl.emulator.storage.objects.unsupported import check_headers
from tpuctl.emulator.storage.requests.primitives import NO_SUCH_BUCKET, Hasher, NotModified
from tpuctl.emulator.storage.requests.user_project import XML_CODES
from tpuctl.emulator.storage.transfers.download import media_headers, send_media
from tpuctl.emulator.storage.transfers.upload_writer import write_stream
from tpuctl.emulator.storage.transfers.uploads import Uploads
from tpuctl.emulator.storage.xml_api.form_uploads import (
    Form,
    check_size,
    form_response,
    read_form,
    signer_of_form,
)
from tpuctl.emulator.storage.xml_api.signed_urls import signer_of
from tpuctl.emulator.storage.xml_api.xml_buckets import XmlBuckets
from tpuctl.emulator.storage.xml_api.xml_copies import CopySource, copy
from tpuctl.emulator.storage.xml_api.xml_documents import XmlError, error_text
from tpuctl.emulator.storage.xml_api.xml_uploads import MultipartUploads
from tpuctl.emulator.wire.http_request import Request

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
# Measured by kmoneil/zig-gcp (src/storage/retention.zig).
_RETENTION_ERRORS = {
    "retentionPolicyNotMet": (
        "RetentionPolicyNotMet",
        "Object overwrite or deletion is not allowed due to retention policy.",
    ),
    "hold": (
        "ObjectUnderActiveHold",
        "Object overwrite or deletion is not allowed due to active hold on the object.",
    ),
}
# By reason; the message of the JSON API is in the details.
_KEY_MESSAGES = {
    "customerEncryptionKeyIsIncorrect": "The provided encryption key is incorrect.",
    "resourceIsEncryptedWithCustomerEncryptionKey": (
        "The resource is encrypted with a customer encryption key."
    ),
    "resourceNotEncryptedWithCustomerEncryptionKey": (
        "The resource is not encrypted with a customer encryption key."
    ),
}
# Errors whose reason is their code.
_REASON_CODES = frozenset(
    (
        *("EntityTooSmall", "InvalidArgument", "InvalidPart", "InvalidPartOrder", "MalformedXML"),
        "NoSuchUpload",
    )
)
# Its methods for objects and buckets, by their JSON API names; those of multipart uploads by the
# permissions that they require.
_OBJECTS = {
    "GET": "objects.get",
    "HEAD": "objects.get",
    "PUT": "objects.insert",
    "DELETE": "objects.delete",
}
_BUCKETS = {
    "GET": "objects.list",
    "HEAD": "buckets.get",
    "PUT": "buckets.insert",
    "DELETE": "buckets.delete",
}
_SESSIONS = {"PUT": "objects.insert", "DELETE": "objects.cancelUpload"}
_PARTS = {
    "GET": "multipartUploads.listParts",
    "PUT": "multipartUploads.create",
    "POST": "multipartUploads.create",
    "DELETE": "multipartUploads.abort",
}
# Subresources that only the JSON API supports here.
_UNSUPPORTED = frozenset(
    (
        *(
            "acl",
            "billing",
            "compose",
            "cors",
            "defaultObjectAcl",
            "encryption",
            "encryptionConfig",
        ),
        *("lifecycle", "location", "logging", "retention", "storageClass", "tagging", "versioning"),
        *("versions", "website"),
    )
)
# google/go-cloud, blob/gcsblob's TestSignedURL.
_OF_UPLOAD = re.compile(r"ETag|X-Goog-(?!Custom-Time|Storage-Class|Meta-)")
METHODS = frozenset((*_PARTS.values(), "multipartUploads.list"))
TrackCall = Callable[..., AbstractAsyncContextManager[None]]


class Xml:
    """Answers `/BUCKET/OBJECT` and `/BUCKET`, and `/` at storage's host."""

    def __init__(
        self,
        objects: Objects,
        uploads: Uploads,
        buckets: XmlBuckets,
        parts: MultipartUploads,
        copies: Copies,
        track: TrackCall,
    ) -> None:
        """`track` is entered for every call, with its method, caller and names."""
        self._track = track
        self._objects = objects
        self._uploads = uploads
        self._buckets = buckets
        self._parts = parts
        self._copies = copies

    async def handle(self, request: Request, bucket: str, rest: str) -> web.StreamResponse:
        """`rest` is the object's percent-encoded name; without a bucket, buckets are listed."""
        name = unquote(rest)
        for header, key in _CONDITIONS.items():
            if header in request.raw.headers:
                request.query[key] = [request.raw.headers[header]]
        kind = {
            "streams": bool(name) and request.verb in ("GET", "HEAD"),
            "uploads": bool(name) and request.verb == "PUT",
        }
        method = _method_of(request, bucket, name)
        request.keeps_encoding = True  # it says what the object is, also where the upload ends
        owner, of = bucket, name
        if method in ("buckets.insert", "buckets.list"):  # these are the project's
            owner = request.raw.headers.get("x-goog-project-id", "")
        try:
            source = CopySource.of(request) if method == "objects.insert" else None
            if source is not None:  # what it writes is checked when it does
                method, owner, of = "objects.copy", source.bucket, source.name
            user_project = request.param("userProject")
            async with self._track(method, request.caller, owner, of, user_project, **kind):
                if source is not None:
                    return copy(request, source, bucket, name, self._copies, self._objects)
                return await self._answer(request, method, bucket, name)
        except NotModified:
            return web.Response(status=304)
        except ApiError as error:
            return _error_response(request, error)

    async def handle_signed(
        self, request: Request, bucket: str, rest: str, access: AccessTokens
    ) -> web.StreamResponse:
        """Like `handle`, on behalf of the account that signed the URL."""
        try:
            request.email = signer_of(request, bucket, access)
        except ApiError as error:
            response = _error_response(request, error)
            if not request.raw.content.is_eof():
                response.force_close()  # do not read the rest of the body
            return response
        return await self.handle(request, bucket, rest)

    async def handle_form(
        self, request: Request, bucket: str, access: AccessTokens
    ) -> web.StreamResponse:
        """An upload by a form, on behalf of the account that signed its policy."""
        try:
            form = await read_form(request)
            request.email, sizes = signer_of_form(form, bucket, access)
            names = (bucket, form.key, request.param("userProject"))
            async with self._track("objects.insert", request.caller, *names, uploads=True):
                stored = await self._receive(request, bucket, form, sizes)
                return form_response(form, stored, request.base_url)
        except ApiError as error:
            response = _error_response(request, error)
            if not request.raw.content.is_eof():
                response.force_close()  # do not read the rest of the body
            return response

    async def _receive(
        self, request: Request, bucket: str, form: Form, sizes: range
    ) -> StoredObject:
        query = {**request.query, "predefinedAcl": [form.predefined_list]}
        self._objects.check_write(bucket, form.key, query)
        encryption = self._uploads.encryption_of(request, bucket)
        draft, hasher = self._objects.files.new_draft(), Hasher()
        try:
            await write_stream(draft, hasher, form.chunks())
            check_size(hasher.size, sizes)
            body = object_body(hasher, form.resource, encryption)
            return self._objects.commit(bucket, form.key, query, draft, hasher.size, body)
        finally:
            draft.unlink(missing_ok=True)

    async def _answer(
        self, request: Request, method: str, bucket: str, name: str
    ) -> web.StreamResponse:
        if method.startswith("xml."):
            raise unimplemented(f"storage.{method}")
        if method in ("objects.insert", "multipartUploads.create"):
            check_headers(request.raw.headers)
        if method.startswith("multipartUploads."):
            return await self._answer_parts(request, bucket, name)
        if not name:
            return await self._answer_bucket(request, method, bucket)
        if method == "objects.get":
            stored = self._objects.load_readable(request.query, bucket, name)
            with self._objects.files.open(stored.file) as file:
                return await send_media(request, stored, file, is_xml=True)
        if method == "objects.insert" and request.verb == "POST":
            return self._uploads.begin_xml(request, bucket, name)
        if method == "objects.insert" and request.param("upload_id"):
            answer = await self._uploads.receive(request, bucket, name)
            if isinstance(answer, web.Response):
                return answer
            generation = {"generation": [str(answer["generation"])]}
            return _uploaded(self._objects.load(generation, bucket, name))
        if method == "objects.insert":
            stored = await self._uploads.receive_simple(request, bucket, name)
            return _uploaded(stored)
        if method == "objects.cancelUpload":
            return self._uploads.cancel(request)
        self._objects.remove(request.query, bucket, name)
        return web.Response(status=204)

    async def _answer_bucket(self, request: Request, method: str, bucket: str) -> web.Response:
        project = request.raw.headers.get("x-goog-project-id", "")
        if method == "buckets.list":
            return self._buckets.list_buckets(request, project)
        if method == "buckets.insert":
            return await self._buckets.insert(request, bucket, project)
        if method == "buckets.get":
            return self._buckets.head(bucket)
        if method == "buckets.delete":
            return self._buckets.delete(request, bucket)
        return self._buckets.get(request, bucket)

    async def _answer_parts(self, request: Request, bucket: str, name: str) -> web.Response:
        if "uploads" in request.query:
            if name:
                return self._parts.initiate(request, bucket, name)
            return self._parts.list_uploads(request, bucket)
        if request.verb == "PUT":
            return await self._parts.upload_part(request, bucket, name)
        if request.verb == "POST":
            return await self._parts.complete(request, bucket, name)
        if request.verb == "GET":
            return self._parts.list_parts(request, bucket, name)
        return self._parts.abort(request, bucket, name)


def _method_of(request: Request, bucket: str, name: str) -> str:
    """The method of a request; names that start with `xml.` are not emulated."""
    unsupported = f"xml.{request.verb}"
    if not bucket:
        return "buckets.list" if request.verb == "GET" else unsupported
    if name and "upload_id" in request.query:
        return _SESSIONS.get(request.verb, unsupported)
    if _UNSUPPORTED & request.query.keys():
        return unsupported
    if "uploads" in request.query:
        operations = {("POST", True): "create", ("GET", False): "list"}
        verb = operations.get((request.verb, bool(name)))
        return f"multipartUploads.{verb}" if verb else unsupported
    if name and "uploadId" in request.query:
        return _PARTS.get(request.verb, unsupported)
    is_start = request.raw.headers.get("x-goog-resumable", "").lower() == "start"
    if name and request.verb == "POST" and is_start:
        return "objects.insert"
    return (_OBJECTS if name else _BUCKETS).get(request.verb, unsupported)


def _uploaded(stored: StoredObject) -> web.Response:
    headers = media_headers(stored, is_xml=True)
    of_upload = {name: headers[name] for name in headers if _OF_UPLOAD.match(name)}
    return web.Response(headers=of_upload, content_type="text/html", charset="UTF-8")


def _error_response(request: Request, error: ApiError) -> web.Response:
    if error.is_page:
        raise error
    return web.Response(
        status=error.http,
        body=b"" if request.verb == "HEAD" else _error_document(error).encode(),
        content_type="application/xml",
        charset="UTF-8",
    )


def _error_document(error: ApiError) -> str:
    if isinstance(error, XmlError):
        return error_text(error.code, error.message, error.elements)
    code, text, details = _CODES.get(error.http, "InternalError"), error.message, ""
    is_held = error.reason == "forbidden" and " is under active " in text
    if error.reason in _REASON_CODES:
        code = error.reason
    elif is_held or error.reason in _RETENTION_ERRORS:
        details = text
        code, text = _RETENTION_ERRORS["hold" if is_held else error.reason]
    elif error.reason in _KEY_MESSAGES:
        code = error.reason[0].upper() + error.reason[1:]
        text, details = _KEY_MESSAGES[error.reason], text
    elif text in XML_CODES:
        code = XML_CODES[text]
    elif error.message == NO_SUCH_BUCKET:
        code = "NoSuchBucket"
    elif code == "NoSuchKey":
        text, details = "The specified key does not exist.", text
    elif code == "AccessDenied":  # google-github-actions/setup-gcloud#49
        text, details = "Access denied.", text
    return error_text(code, text, [("Details", details)] if details else ())
