"""Multipart uploads of the XML API: parts in any order or in parallel, then completed.

cloud.google.com/storage/docs/multipart-uploads and the XML API's reference. The Python client's
`transfer_manager.upload_chunks_concurrently` sends them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from aiohttp import web

from tpuctl.emulator.state.errors import invalid, missing
from tpuctl.emulator.state.projects import now_text
from tpuctl.emulator.state.store import Store
from tpuctl.emulator.storage.buckets.encryption import FIELDS as ENCRYPTION
from tpuctl.emulator.storage.buckets.encryption import key_hash, require_key
from tpuctl.emulator.storage.objects.object_row import StoredObject
from tpuctl.emulator.storage.objects.objects import Objects, object_body
from tpuctl.emulator.storage.requests.primitives import hash_files
from tpuctl.emulator.storage.transfers.uploads import Uploads
from tpuctl.emulator.storage.xml_api.xml_documents import document, parse
from tpuctl.emulator.wire.http_request import Request

_KIND = "storage.multipart"
_MAX_PARTS = 10_000
_MIN_PART_BYTES = 5 * 2**20  # of every part but the last
_MAX_LIST_BYTES = 4 * 2**20
_UPLOAD_SECONDS = 7 * 24 * 3600.0

Record = dict[str, Any]


class MultipartUploads:
    """Uploads in progress. Each has a folder, with a file for each part."""

    def __init__(self, home: Path, store: Store, objects: Objects, uploads: Uploads) -> None:
        self._folder = home / "parts"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._store = store
        self._objects = objects
        self._uploads = uploads

    def sweep(self) -> None:
        """Delete uploads older than a week, and leftovers of a killed process."""
        for folder in self._folder.iterdir():
            record = self._store.get_json(_KIND, folder.name)
            if record is None or record["started"] < time.time() - _UPLOAD_SECONDS:
                self._delete(folder.name)
                continue
            part_files = {part["file"] for part in record["parts"].values()}
            for path in folder.iterdir():
                if path.name not in part_files:
                    path.unlink()

    def initiate(self, request: Request, bucket: str, name: str) -> web.Response:
        self._objects.check_write(bucket, name, request.query)
        upload_id = secrets.token_urlsafe(48)
        record = {
            "bucket": bucket,
            "name": name,
            "resource": self._uploads.resource_of(request),
            "encryption": self._uploads.encryption_of(request, bucket),
            "initiated": now_text(),
            "started": time.time(),
            "parts": {},
        }
        (self._folder / upload_id).mkdir(mode=0o700)
        self._store.put_json(_KIND, upload_id, record)
        elements = [("Bucket", bucket), ("Key", name), ("UploadId", upload_id)]
        return document("InitiateMultipartUploadResult", elements)

    async def upload_part(self, request: Request, bucket: str, name: str) -> web.Response:
        upload_id = request.param("uploadId")
        _require_key(request, self._load(upload_id, bucket, name))
        number = request.param("partNumber")
        if not re.fullmatch(r"[0-9]{1,5}", number) or not 1 <= int(number) <= _MAX_PARTS:
            text = f"Part number must be an integer between 1 and {_MAX_PARTS}."
            raise invalid(text, reason="InvalidArgument")
        draft, hasher = await self._uploads.receive_draft(request)
        try:
            record = self._load(upload_id, bucket, name)  # it may have ended meanwhile
            previous = record["parts"].get(str(int(number)))
            file = f"{int(number)}-{secrets.token_hex(8)}"
            draft.replace(self._folder / upload_id / file)
            etag = base64.b64decode(hasher.md5).hex()
            part = {"file": file, "size": hasher.size, "etag": etag, "modified": now_text()}
            record["parts"][str(int(number))] = part
            self._store.put_json(_KIND, upload_id, record)
            if previous is not None:
                (self._folder / upload_id / previous["file"]).unlink(missing_ok=True)
        finally:
            draft.unlink(missing_ok=True)
        hashes = f"crc32c={hasher.crc32c},md5={hasher.md5}"
        return web.Response(headers={"ETag": f'"{etag}"', "x-goog-hash": hashes})

    def list_parts(self, request: Request, bucket: str, name: str) -> web.Response:
        upload_id = request.param("uploadId")
        parts = self._load(upload_id, bucket, name)["parts"]
        marker, max_parts = (
            _number(request, "part-number-marker", 0),
            _number(request, "max-parts", 1000),
        )
        numbers = sorted(int(number) for number in parts if int(number) > marker)
        page = numbers[: min(max_parts, 1000)]
        is_truncated = len(page) < len(numbers)
        return document(
            "ListPartsResult",
            [
                ("Bucket", bucket),
                ("Key", name),
                ("UploadId", upload_id),
                ("StorageClass", "STANDARD"),
                ("PartNumberMarker", str(marker)),
                *([("NextPartNumberMarker", str(page[-1]))] if is_truncated and page else []),
                ("MaxParts", str(min(max_parts, 1000))),
                ("IsTruncated", str(is_truncated).lower()),
                *(("Part", _part_elements(number, parts[str(number)])) for number in page),
            ],
        )

    def list_uploads(self, request: Request, bucket: str) -> web.Response:
        """The bucket's uploads in progress, by name."""
        prefix = request.param("prefix")
        uploads = []
        for upload_id, body in self._store.items(_KIND, ""):
            record = json.loads(body)
            if record["bucket"] == bucket and record["name"].startswith(prefix):
                uploads.append((record["name"], record["initiated"], upload_id))
        return document(
            "ListMultipartUploadsResult",
            [
                ("Bucket", bucket),
                ("Prefix", prefix),
                ("IsTruncated", "false"),
                *(
                    (
                        "Upload",
                        [
                            ("Key", name),
                            ("UploadId", upload_id),
                            ("StorageClass", "STANDARD"),
                            ("Initiated", initiated),
                        ],
                    )
                    for name, initiated, upload_id in sorted(uploads)
                ),
            ],
        )

    async def complete(self, request: Request, bucket: str, name: str) -> web.Response:
        upload_id = request.param("uploadId")
        record = self._load(upload_id, bucket, name)
        _require_key(request, record)
        parts = _listed_parts(await request.read(_MAX_LIST_BYTES), record["parts"])
        self._objects.check_write(bucket, name, request.query)
        draft = self._objects.files.new_draft()
        paths = [self._folder / upload_id / part["file"] for part in parts]

        def end(_: StoredObject) -> None:
            self._store.delete(_KIND, upload_id)

        try:
            hasher = await asyncio.to_thread(hash_files, _open_each(paths), draft)
            self._load(upload_id, bucket, name)
            body = object_body(hasher, record["resource"], record.get("encryption", {}))
            del body["md5Hash"]  # absent, as for composite objects
            query = request.query
            stored = self._objects.commit(
                bucket,
                name,
                {key: values for key, values in query.items() if key != "uploadId"},
                draft,
                hasher.size,
                body,
                end,
            )
        finally:
            draft.unlink(missing_ok=True)
        self._delete(upload_id)
        answer = document(
            "CompleteMultipartUploadResult",
            [
                ("Location", f"{request.base_url}/{bucket}/{name}"),
                ("Bucket", bucket),
                ("Key", name),
                ("ETag", f'"{secrets.token_hex(16)}-{len(parts)}"'),
            ],
        )
        answer.headers["x-goog-generation"] = str(stored.generation)
        if stored.body.keys().isdisjoint(ENCRYPTION):
            answer.headers["x-goog-hash"] = f"crc32c={hasher.crc32c}"
        return answer

    def abort(self, request: Request, bucket: str, name: str) -> web.Response:
        self._load(request.param("uploadId"), bucket, name)
        self._delete(request.param("uploadId"))
        return web.Response(status=204)

    def _load(self, upload_id: str, bucket: str, name: str) -> Record:
        record = self._store.get_json(_KIND, upload_id)
        if record is None or (record["bucket"], record["name"]) != (bucket, name):
            raise missing("The specified upload does not exist.", reason="NoSuchUpload")
        return record

    def _delete(self, upload_id: str) -> None:
        self._store.delete(_KIND, upload_id)
        shutil.rmtree(self._folder / upload_id, ignore_errors=True)


def _require_key(request: Request, record: Record) -> None:
    digest = key_hash(request.raw.headers)
    require_key(record.get("encryption", {}), digest, noun="requested multipart upload")


def _part_elements(number: int, part: Record) -> list[tuple[str, str]]:
    return [
        ("PartNumber", str(number)),
        ("LastModified", part["modified"]),
        ("ETag", f'"{part["etag"]}"'),
        ("Size", str(part["size"])),
    ]


def _listed_parts(body: bytes, parts: Record) -> list[Record]:
    """The parts of the object, in order, as listed by the client."""
    listed: list[Record] = []
    last = 0
    for element in parse(body, "CompleteMultipartUpload").iter("Part"):
        number = (element.findtext("PartNumber") or "").strip()
        etag = (element.findtext("ETag") or "").strip().strip('"')
        part = parts.get(number)
        if part is None or part["etag"] != etag:
            text = "One or more of the specified parts could not be found or had another ETag."
            raise invalid(text, reason="InvalidPart")
        if int(number) <= last:
            text = "The list of parts was not in ascending order."
            raise invalid(text, reason="InvalidPartOrder")
        last = int(number)
        listed.append(part)
    if not listed:
        raise invalid("At least one part must be specified.", reason="MalformedXML")
    if any(part["size"] < _MIN_PART_BYTES for part in listed[:-1]):
        text = "Your proposed upload is smaller than the minimum object size."
        raise invalid(text, reason="EntityTooSmall")
    return listed


def _open_each(paths: list[Path]) -> Iterator[BinaryIO]:
    for path in paths:
        with path.open("rb") as part:
            yield part


def _number(request: Request, key: str, default: int) -> int:
    text = request.param(key)
    if text and not re.fullmatch(r"[0-9]{1,9}", text):
        raise invalid(f"Invalid value of {key}: {text}", reason="InvalidArgument")
    return int(text) if text else default
