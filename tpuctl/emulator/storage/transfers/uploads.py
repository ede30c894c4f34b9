"""Uploads: simple, multipart, and resumable."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from tpuctl.emulator.state.errors import ApiError, invalid, missing
from tpuctl.emulator.state.store import Store
from tpuctl.emulator.storage.buckets.encryption import key_of
from tpuctl.emulator.storage.objects.object_row import StoredObject
from tpuctl.emulator.storage.objects.objects import Objects, object_body
from tpuctl.emulator.storage.objects.unsupported import check_fields
from tpuctl.emulator.storage.requests.primitives import (
    Hasher,
    claimed_checksums,
    hash_files,
    read_body_json,
)
from tpuctl.emulator.storage.transfers.multipart import MAX_METADATA_BYTES, MultipartBody
from tpuctl.emulator.storage.transfers.upload_writer import write_stream
from tpuctl.emulator.wire.http_request import Request

# `0-*` is everything in the request from that offset on, as sent by the Node client; with `/*` the
# request's end is the object's.
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+|\*)|\*)/(\d+|\*)")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")  # not UNSIGNED-PAYLOAD
_MIN_CHUNK_BYTES = 256 * 1024  # of every request of an upload but the last
_SESSION_SECONDS = 7 * 24 * 3600.0  # how long an upload session lives, as Google's
_EXPIRY_SECONDS = 3600.0


@dataclass
class Session:
    """A resumable upload, in progress or complete (then `result` is the object)."""

    id: str
    bucket: str
    name: str
    draft: Path
    resource: dict[str, Any]
    query: dict[str, list[str]]
    started: float
    encryption: dict[str, Any]
    email: str = ""  # of the caller who began it: its URL needs no other credentials
    scopes: str = ""
    result: dict[str, Any] | None = None


class Uploads:
    """Receives uploads. Bodies are never loaded into memory."""

    def __init__(self, store: Store, objects: Objects) -> None:
        self._store = store
        self._objects = objects
        self._files = objects.files
        self._hashers: dict[str, Hasher] = {}  # of sessions written by this process so far
        self._busy: set[str] = set()
        self._unusable: dict[str, str] = {}  # sessions, with the reason
        self._next_expiry = 0.0

    async def start(self, request: Request, bucket: str) -> web.StreamResponse:
        """POST to `/upload/…/o`: a complete upload, or the start of a resumable one."""
        kind = request.param("uploadType")
        if kind == "resumable":
            return await self._begin(request, bucket)
        if kind == "multipart":
            return await self._multipart(request, bucket)
        if kind in ("media", ""):
            return await self._simple(request, bucket)
        raise invalid(f"Invalid uploadType: {kind}", location=("parameter", "uploadType"))

    async def receive_draft(self, request: Request) -> tuple[Path, Hasher]:
        """Store the request's body as a draft, after verifying its checksums."""
        draft, hasher = self._files.new_draft(), Hasher()
        try:
            await write_stream(draft, hasher, request.chunks())
            hasher.check(claimed_checksums(request.raw.headers.get("X-Goog-Hash", "")))
            hasher.check({"md5Hash": request.raw.headers.get("Content-MD5")})
            claimed = request.raw.headers.get("X-Goog-Content-SHA256", "")
            if _SHA256.fullmatch(claimed):
                await asyncio.to_thread(_check_sha256, draft, claimed.lower())
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        return draft, hasher

    def resource_of(self, request: Request) -> dict[str, Any]:
        """The object metadata in a request's headers."""
        return resource_of_headers(_with_encoding({}, request), request)

    def encryption_of(self, request: Request, bucket: str) -> dict[str, Any]:
        kms_key = request.param("kmsKeyName")
        return self._objects.encryption(bucket, request.raw.headers, kms_key)

    def _show(self, stored: StoredObject, base_url: str) -> dict[str, Any]:
        """The resource of a new object, with its checksums: the caller has its key."""
        return self._objects.show(stored, base_url, digest=key_of(stored.body))

    async def receive_simple(self, request: Request, bucket: str, name: str) -> StoredObject:
        """Store the request's body as an object."""
        self._objects.check_write(bucket, name, request.query)
        encryption = self.encryption_of(request, bucket)
        draft, hasher = await self.receive_draft(request)
        try:
            body = object_body(hasher, self.resource_of(request), encryption)
            return self._objects.commit(bucket, name, request.query, draft, hasher.size, body)
        finally:
            draft.unlink(missing_ok=True)

    async def _simple(self, request: Request, bucket: str) -> web.StreamResponse:
        stored = await self.receive_simple(request, bucket, request.param("name"))
        return self._json_response(request, self._show(stored, request.base_url))

    async def _multipart(self, request: Request, bucket: str) -> web.StreamResponse:
        header = request.raw.headers.get("Content-Type", "")
        # The boundary may be unquoted, or in single or double quotes.
        match = re.search(r"boundary=(?:\"([^\"]+)\"|'([^']+)'|([^\s;]+))", header)
        if match is None:
            raise invalid("Missing boundary in the Content-Type of a multipart upload.")
        boundary = (match[1] or match[2] or match[3]).encode()
        parts = MultipartBody(request.chunks(), boundary)
        request.content = await parts.read_metadata()
        check_fields("objects.insert", request.content)
        resource = _with_encoding(read_body_json(request.content), request)
        name = str(request.param("name") or resource.get("name") or "")
        self._objects.check_write(bucket, name, request.query)
        encryption = self.encryption_of(request, bucket)
        _set_content_type(resource, await parts.read_media_type())
        draft, hasher = self._files.new_draft(), Hasher()
        try:
            await write_stream(draft, hasher, parts.media())
            hasher.check(resource)
            hasher.check(claimed_checksums(request.raw.headers.get("X-Goog-Hash", "")))
            body = object_body(hasher, resource, encryption)
            stored = self._objects.commit(bucket, name, request.query, draft, hasher.size, body)
        finally:
            draft.unlink(missing_ok=True)
        return self._json_response(request, self._show(stored, request.base_url))

    # Resumable uploads.

    async def _begin(self, request: Request, bucket: str) -> web.StreamResponse:
        content = await request.read(MAX_METADATA_BYTES)
        check_fields("objects.insert", content)
        resource = _with_encoding(read_body_json(content), request)
        name = str(request.param("name") or resource.get("name") or "")
        self._objects.check_write(bucket, name, request.query)
        _set_content_type(resource, request.raw.headers.get("X-Upload-Content-Type", ""))
        query = {key: values[-1] for key, values in request.query.items()}
        upload_id = self._open_session(request, bucket, name, resource)
        location = (
            f"{request.base_url}{request.path}?{urlencode({**query, 'upload_id': upload_id})}"
        )
        return web.Response(
            status=200,
            headers={
                "Location": location,
                "X-GUploader-UploadID": upload_id,
                "Content-Type": "text/plain; charset=utf-8",
            },
        )

    def begin_xml(self, request: Request, bucket: str, name: str) -> web.Response:
        """The XML API's start of a resumable upload."""
        self._objects.check_write(bucket, name, request.query)
        upload_id = self._open_session(request, bucket, name, self.resource_of(request))
        location = f"{request.base_url}{request.path}?{urlencode({'upload_id': upload_id})}"
        headers = {"Location": location, "X-GUploader-UploadID": upload_id}
        return web.Response(status=201, headers=headers, content_type="text/html", charset="UTF-8")

    def caller_of(
        self, upload_id: str, target: tuple[str, str] | None = None
    ) -> tuple[str, frozenset[str]] | None:
        """Email and scopes of the caller who began a session.

        None if there is no such session, or if it is not for the object of the URL: its bucket and
        name, if the URL names them.
        """
        if not upload_id or not self._store.row("SELECT 1 FROM uploads WHERE id=?", upload_id):
            return None
        session = self._load(upload_id)
        if target is not None and target != (session.bucket, session.name):
            return None
        return (session.email, frozenset(session.scopes.split())) if session.email else None

    def _open_session(
        self, request: Request, bucket: str, name: str, resource: dict[str, Any]
    ) -> str:
        """The ID of a new session."""
        self._expire_sessions()
        session = Session(
            id=secrets.token_urlsafe(48),
            bucket=bucket,
            name=name,
            draft=self._files.new_draft(),
            resource=resource,
            query=request.query,
            started=time.time(),
            encryption=self.encryption_of(request, bucket),
            email=request.email,
            scopes=" ".join(sorted(request.scopes)),
        )
        session.draft.touch(mode=0o600)
        self._save(session)
        self._hashers[session.id] = Hasher()
        return session.id

    async def resume(self, request: Request) -> web.StreamResponse:
        """PUT to a session's URL: more data, or a status query."""
        answer = await self.receive(request)
        return self._json_response(request, answer) if isinstance(answer, dict) else answer

    async def receive(
        self, request: Request, bucket: str = "", name: str = ""
    ) -> web.Response | dict[str, Any]:
        """Like `resume`, but the resource of a complete object is not a response yet.

        A URL that names the object must be that of the session.
        """
        session = self._load(request.param("upload_id"))
        if name and (session.bucket, session.name) != (bucket, name):
            raise missing("Upload session not found.")
        if session.result is not None:
            await _drain(request)
            return session.result
        self._require_idle(session)
        if session.id in self._unusable:
            raise invalid(self._unusable[session.id])
        self._busy.add(session.id)
        try:
            return await self._append(request, session)
        finally:
            self._busy.discard(session.id)

    def _check_chunk(self, session: Session, size: int) -> None:
        """After a part that is too small, the session takes no other: the tests of
        google-resumable-media, which have the message."""
        if size < _MIN_CHUNK_BYTES:
            self._unusable[session.id] = (
                "Invalid request.  The number of bytes uploaded is required to be equal or greater "
                f"than {_MIN_CHUNK_BYTES}, except for the final request (it's recommended to be "
                f"the exact multiple of {_MIN_CHUNK_BYTES}).  The received request contained "
                f"{size} bytes, which does not meet this requirement."
            )
            raise invalid(self._unusable[session.id])

    async def _append(self, request: Request, session: Session) -> web.Response | dict[str, Any]:
        header = request.raw.headers.get("Content-Range", "")
        received = session.draft.stat().st_size
        first, total = 0, None
        is_question = False
        is_last = not header
        if header:
            match = _RANGE.fullmatch(header.strip())
            if match is None:
                raise invalid(f"Failed to parse Content-Range header: {header}")
            is_question = match[1] is None
            first = received if is_question else int(match[1])
            total = None if match[3] == "*" else int(match[3])
            is_last = match[2] == "*" and total is None
            end = first if match[2] in (None, "*") else int(match[2]) + 1
            is_backwards = end <= first and match[2] not in (None, "*")
            if is_backwards or (total is not None and not is_question and end > total):
                raise invalid(f"Failed to parse Content-Range header: {header}")
            if match[2] not in (None, "*") and end != total:
                self._check_chunk(session, end - first)
        if first > received:
            raise invalid(
                "Invalid request.  According to the Content-Range header, the upload offset is "
                f"{first} byte(s), which exceeds already uploaded size of {received} byte(s)."
            )
        if is_question:
            await _drain(request)
        else:
            hasher = await self._hasher(session, received)
            request.exchange.offset = first
            try:
                await write_stream(
                    session.draft, hasher, _skip(request.chunks(), received - first), "ab"
                )
            except BaseException:
                # Received data is kept: the client queries its size and resumes from there.
                self._hashers.pop(session.id, None)
                raise
            received = session.draft.stat().st_size
            if is_last:
                total = received
        if total is not None and received > total:
            raise invalid("Invalid request.  More bytes were sent than the upload has.")
        if total is None or received < total:
            return _incomplete(request, session, received)
        claims = claimed_checksums(request.raw.headers.get("X-Goog-Hash", ""))
        return await self._finish(session, claims, request.base_url)

    def cancel(self, request: Request) -> web.StreamResponse:
        session = self._load(request.param("upload_id"))
        self._require_idle(session)
        self._delete(session.id, session.draft)
        return web.Response(status=499)

    def _require_idle(self, session: Session) -> None:
        if session.id in self._busy:
            raise ApiError("UNAVAILABLE", "Another request is writing to this upload session.")

    def _delete(self, upload_id: str, draft: Path) -> None:
        self._store.run("DELETE FROM uploads WHERE id=?", upload_id)
        draft.unlink(missing_ok=True)
        self._hashers.pop(upload_id, None)
        self._unusable.pop(upload_id, None)

    async def _finish(
        self, session: Session, claims: dict[str, str], base_url: str
    ) -> dict[str, Any]:
        size = session.draft.stat().st_size
        hasher = await self._hasher(session, size)
        del self._hashers[session.id]
        hasher.check(session.resource)
        hasher.check(claims)
        body = object_body(hasher, session.resource, session.encryption)
        resource: dict[str, Any] = {}

        def end(stored: StoredObject) -> None:
            resource.update(self._show(stored, base_url))
            session.result = resource
            self._save(session)

        self._objects.commit(
            session.bucket,
            session.name,
            session.query,
            session.draft,
            size,
            body,
            end,
            keep_draft=True,
        )
        session.draft.unlink(missing_ok=True)
        return resource

    async def _hasher(self, session: Session, size: int) -> Hasher:
        """The running checksums of the session's data; recomputed after an interruption."""
        hasher = self._hashers.get(session.id)
        if hasher is None or hasher.size != size:
            hasher = await asyncio.to_thread(_hash_file, session.draft)
            self._hashers[session.id] = hasher
        return hasher

    def _load(self, upload_id: str) -> Session:
        row = self._store.row("SELECT * FROM uploads WHERE id=?", upload_id)
        if row is None:
            raise missing("Upload session not found.")
        session_id, bucket, name, body, file = row
        fields = {"encryption": {}, **json.loads(body)}
        return Session(session_id, bucket, name, self._files.drafts / file, **fields)

    def _save(self, session: Session) -> None:
        fields = dict(vars(session))
        names = [fields.pop(name) for name in ("id", "bucket", "name")]
        file = fields.pop("draft").name
        statement = "INSERT OR REPLACE INTO uploads VALUES (?,?,?,?,?)"
        self._store.run(statement, *names, json.dumps(fields), file)

    def sweep(self) -> None:
        """Delete expired sessions and orphaned drafts. Called before any request."""
        self._expire_sessions()
        rows = self._store.rows("SELECT file, body FROM uploads")
        live = {file for file, body in rows if json.loads(body)["result"] is None}
        for path in self._files.drafts.iterdir():
            if path.name not in live:
                path.unlink(missing_ok=True)

    def _expire_sessions(self) -> None:
        """Delete expired sessions; checks at most once per hour."""
        now = time.time()
        if now < self._next_expiry:
            return
        self._next_expiry = now + _EXPIRY_SECONDS
        for upload_id, body, file in self._store.rows("SELECT id, body, file FROM uploads"):
            if json.loads(body)["started"] < now - _SESSION_SECONDS and upload_id not in self._busy:
                self._delete(upload_id, self._files.drafts / file)

    def _json_response(self, request: Request, resource: dict[str, Any]) -> web.Response:
        if request.param("projection") == "full":
            self._objects.add_access_controls(resource)
        return web.Response(
            body=json.dumps(resource).encode(),
            content_type="application/json",
            charset="UTF-8",
            headers={"ETag": str(resource["etag"])},
        )


def _check_sha256(draft: Path, claimed: str) -> None:
    with draft.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != claimed:  # the wording is a guess
        text = f'Provided SHA256 hash "{claimed}" doesn\'t match calculated SHA256 "{actual}".'
        raise invalid(text)


def _incomplete(request: Request, session: Session, received: int) -> web.Response:
    """The answer to a part of an upload that is not the last."""
    headers = {"X-GUploader-UploadID": session.id}
    if received:
        headers["Range"] = f"bytes=0-{received - 1}"
    if request.raw.headers.get("X-GUploader-No-308") == "yes":
        # Of Go's clients, for which 308 is a redirect: google-api-go-client,
        # internal/gensupport/resumable.go.
        headers["X-Http-Status-Code-Override"] = "308"
        return web.Response(headers=headers)
    return web.Response(status=308, headers=headers)


async def _drain(request: Request) -> None:
    async for _ in request.chunks():
        pass


async def _skip(chunks: AsyncIterator[bytes], count: int) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        if count >= len(chunk):
            count -= len(chunk)
            continue
        yield chunk[count:]
        count = 0


def _hash_file(path: Path) -> Hasher:
    with path.open("rb") as file:
        return hash_files([file])


def _with_encoding(resource: dict[str, Any], request: Request) -> dict[str, Any]:
    """Apply the contentEncoding parameter, which overrides the field."""
    if request.param("contentEncoding"):
        resource["contentEncoding"] = request.param("contentEncoding")
    return resource


def _set_content_type(resource: dict[str, Any], content_type: str) -> None:
    """Set the content type of the data, which must not contradict the metadata.

    The message is quoted in many public repositories.
    """
    declared_type = resource.get("contentType")
    if declared_type and content_type and declared_type != content_type:
        raise invalid(
            f"Content-Type specified in the upload ({content_type}) does not match Content-Type "
            f"specified in metadata ({declared_type})."
        )
    if content_type and not declared_type:
        resource["contentType"] = content_type


def resource_of_headers(resource: dict[str, Any], request: Request) -> dict[str, Any]:
    """An object's resource, with what the headers of a request say of it."""
    declared = request.raw.headers.get("Content-Type", "")
    if declared and "contentType" not in resource:
        resource["contentType"] = declared
    for header, field in (
        ("Content-Encoding", "contentEncoding"),
        ("Cache-Control", "cacheControl"),
        ("Content-Disposition", "contentDisposition"),
        ("Content-Language", "contentLanguage"),
        ("x-goog-custom-time", "customTime"),
        ("x-goog-storage-class", "storageClass"),
    ):
        is_xml = request.verb == "PUT" or "uploads" in request.query
        if request.raw.headers.get(header) and is_xml:
            resource[field] = request.raw.headers[header]
    custom = {
        key[len("x-goog-meta-") :].lower(): value
        for key, value in request.raw.headers.items()
        if key.lower().startswith("x-goog-meta-")
    }
    if custom:
        resource["metadata"] = custom
    return resource
