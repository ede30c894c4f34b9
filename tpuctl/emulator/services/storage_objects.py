"""Objects: their metadata, lists, copies and compositions. Earlier versions are not kept."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tpuctl.emulator.paging import read_token, write_token
from tpuctl.emulator.projects import now_text
from tpuctl.emulator.services.storage_buckets import Buckets, merge
from tpuctl.emulator.services.storage_common import (
    CHUNK,
    Answer,
    Call,
    Checksum,
    Files,
    Hasher,
    check_conditions,
    etag_of,
    glob_pattern,
    no_such_object,
    parse_number,
)
from tpuctl.emulator.status import ApiError, invalid
from tpuctl.emulator.store import Store

__all__ = ["Objects", "Stored"]

_MOST_SOURCES = 32
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LONGEST_NAME = 1024
_SETTABLE = (
    "cacheControl",
    "contentDisposition",
    "contentEncoding",
    "contentLanguage",
    "contentType",
    "customTime",
    "eventBasedHold",
    "metadata",
    "storageClass",
    "temporaryHold",
)


@dataclass(frozen=True)
class Stored:
    """One object as the store has it."""

    bucket: str
    name: str
    generation: int
    metageneration: int
    size: int
    file: str
    body: dict[str, Any]  # the resource, but for what the other fields tell

    @property
    def state(self) -> tuple[int, int]:
        return self.generation, self.metageneration


class Objects:
    """The objects of all buckets."""

    def __init__(self, store: Store, buckets: Buckets, files: Files) -> None:
        self._store = store
        self._buckets = buckets
        self.files = files

    def find(self, bucket: str, name: str) -> Stored | None:
        row = self._store.row("SELECT * FROM objects WHERE bucket=? AND name=?", bucket, name)
        return _stored(row) if row else None

    def must(self, call_query: Any, bucket: str, name: str, *, is_read: bool = False) -> Stored:
        """The object, its preconditions and its generation held against the query."""
        self._buckets.must(bucket)
        found = self.find(bucket, name)
        wanted = (call_query.get("generation") or [""])[-1]
        if found is None or (wanted and parse_number("generation", wanted) != found.generation):
            raise no_such_object(bucket, name)
        check_conditions(call_query, found.state, is_read=is_read)
        return found

    def show(self, stored: Stored, base_url: str) -> dict[str, Any]:
        path = f"b/{stored.bucket}/o/{quote(stored.name, safe='')}"
        return {
            "kind": "storage#object",
            "id": f"{stored.bucket}/{stored.name}/{stored.generation}",
            "selfLink": f"{base_url}/storage/v1/{path}",
            "mediaLink": (
                f"{base_url}/download/storage/v1/{path}?generation={stored.generation}&alt=media"
            ),
            "name": stored.name,
            "bucket": stored.bucket,
            "generation": str(stored.generation),
            "metageneration": str(stored.metageneration),
            "size": str(stored.size),
            "etag": etag_of(*stored.state),
            **stored.body,
        }

    def check_write(self, bucket: str, name: str, query: Any) -> None:
        """Refuse a write before its bytes are read; it is asked again when they are there."""
        self._buckets.must(bucket)
        if not name or len(name.encode()) > _LONGEST_NAME or "\n" in name or "\r" in name:
            raise invalid("Required parameter: name" if not name else "Invalid object name.")
        if name in (".", "..") or name.startswith(".well-known/acme-challenge/"):
            raise invalid("Invalid object name.")
        found = self.find(bucket, name)
        check_conditions(query, found.state if found else None)

    def commit(
        self,
        bucket: str,
        name: str,
        query: Any,
        draft: Path,
        size: int,
        body: dict[str, Any],
    ) -> Stored:
        """Make a whole draft the object, in one step that a kill cannot split."""
        file = self.files.adopt(draft)
        try:
            with self._store.transaction():
                self.check_write(bucket, name, query)
                former = self.find(bucket, name)
                now_us = time.time_ns() // 1000
                now = now_text()
                complete = {
                    "contentType": "application/octet-stream",
                    "storageClass": self._buckets.must(bucket)["storageClass"],
                    "timeCreated": now,
                    "updated": now,
                    "timeStorageClassUpdated": now,
                    "timeFinalized": now,
                    **body,
                }
                stored = Stored(
                    bucket, name, self._store.next("generation", now_us), 1, size, file, complete
                )
                self._save(stored)
        except BaseException:
            self.files.remove(file)
            raise
        if former is not None:
            self.files.remove(former.file)
        return stored

    # Methods.

    def get(self, call: Call) -> Answer:
        stored = self.must(call.query, call.parts[1], call.parts[3], is_read=True)
        return Answer(self.show(stored, call.base_url))

    def delete(self, call: Call) -> Answer:
        self.remove(call.query, call.parts[1], call.parts[3])
        return Answer(None, 204)

    def remove(self, query: Any, bucket: str, name: str) -> None:
        stored = self.must(query, bucket, name)
        self._store.run("DELETE FROM objects WHERE bucket=? AND name=?", bucket, name)
        self.files.remove(stored.file)

    def sweep(self) -> None:
        """Remove files that no object has: of writes and deletions cut short by a kill."""
        live = {row[0] for row in self._store.rows("SELECT file FROM objects")}
        for folder in self.files.objects.iterdir():
            for path in folder.iterdir():
                if path.name not in live:
                    path.unlink(missing_ok=True)

    def patch(self, call: Call) -> Answer:
        return self._change(call, replace=False)

    def update(self, call: Call) -> Answer:
        return self._change(call, replace=True)

    def _change(self, call: Call, *, replace: bool) -> Answer:
        stored = self.must(call.query, call.parts[1], call.parts[3])
        body = dict(stored.body)
        if replace:
            body = {key: value for key, value in body.items() if key not in _SETTABLE}
            body["storageClass"] = stored.body["storageClass"]
        merge(body, settable(call.json()))
        body["updated"] = now_text()
        changed = Stored(
            stored.bucket,
            stored.name,
            stored.generation,
            stored.metageneration + 1,
            stored.size,
            stored.file,
            body,
        )
        self._save(changed)
        return Answer(self.show(changed, call.base_url))

    def list_all(self, call: Call) -> Answer:
        """In order of name as UTF-8 bytes; `versions` is ignored, there is only one of each."""
        bucket = call.parts[1]
        self._buckets.must(bucket)
        prefix, delimiter = call.first("prefix"), call.first("delimiter")
        most = min(max(call.number("maxResults", 1000), 1), 1000)
        glob = glob_pattern(call.first("matchGlob")) if call.first("matchGlob") else None
        end = call.first("endOffset")
        trailing = call.first("includeTrailingDelimiter").lower() == "true"
        cursor = max(prefix, call.first("startOffset"))
        inclusive = True
        if call.first("pageToken"):
            cursor, inclusive = max(cursor, read_token(call.first("pageToken"))), False
        items: list[dict[str, Any]] = []
        prefixes: list[str] = []
        last, token = "", ""
        while True:
            row = self._next(bucket, prefix, cursor, inclusive)
            if row is None or (end and row.name >= end):
                break
            if len(items) + len(prefixes) >= most:
                token = write_token(last)
                break
            head, found, _ = row.name[len(prefix) :].partition(delimiter or "\0")
            if delimiter and found:
                common = prefix + head + delimiter
                prefixes.append(common)
                if trailing and row.name == common:
                    items.append(self.show(row, call.base_url))
                # On behind everything that lies under the common prefix.
                last = cursor = common + "\U0010ffff"
            else:
                if glob is None or glob.fullmatch(row.name):
                    items.append(self.show(row, call.base_url))
                last = cursor = row.name
            inclusive = False
        answer: dict[str, Any] = {"kind": "storage#objects"}
        if items:
            answer["items"] = items
        if prefixes:
            answer["prefixes"] = prefixes
        if token:
            answer["nextPageToken"] = token
        return Answer(answer)

    def _next(self, bucket: str, prefix: str, cursor: str, inclusive: bool) -> Stored | None:
        row = self._store.row(
            f"SELECT * FROM objects WHERE bucket=? AND name{'>=' if inclusive else '>'}? "
            "AND name<? ORDER BY name LIMIT 1",
            bucket,
            cursor,
            prefix + "\U0010ffff",
        )
        return _stored(row) if row else None

    def copy(self, call: Call) -> Answer:
        """rewriteTo and copyTo: done in one call, whatever the size."""
        source_bucket, source_name = call.parts[1], call.parts[3]
        bucket, name = call.parts[6], call.parts[8]
        self._buckets.must(source_bucket)
        source = self.find(source_bucket, source_name)
        generation = call.first("sourceGeneration")
        if source is None or (generation and generation != str(source.generation)):
            raise no_such_object(source_bucket, source_name)
        check_conditions(call.query, source.state, prefix="ifSource")
        self.check_write(bucket, name, call.query)
        dropped = ("timeCreated", "updated", "timeStorageClassUpdated", "timeFinalized")
        body = {key: value for key, value in source.body.items() if key not in dropped}
        wanted = settable(call.json())
        if wanted:  # metadata that is given replaces all of the source's
            body = {key: value for key, value in body.items() if key not in _SETTABLE}
            merge(body, wanted)
        draft = self.files.new_draft()
        os.link(self.files.path(source.file), draft)
        stored = self.commit(bucket, name, call.query, draft, source.size, body)
        shown = self.show(stored, call.base_url)
        if call.parts[4] == "copyTo":
            return Answer(shown)
        return Answer(
            {
                "kind": "storage#rewriteResponse",
                "totalBytesRewritten": str(stored.size),
                "objectSize": str(stored.size),
                "done": True,
                "resource": shown,
            }
        )

    async def compose(self, call: Call) -> Answer:
        bucket, name = call.parts[1], call.parts[3]
        wanted = call.json()
        self.check_write(bucket, name, call.query)
        sources = self._sources(bucket, wanted.get("sourceObjects"))
        draft = self.files.new_draft()
        # Opened before anything is awaited: the sources stay readable if they are deleted.
        opened = [self.files.open(source.file) for source in sources]
        try:
            crc32c = await asyncio.to_thread(_concatenate, opened, draft)
        finally:
            for file in opened:
                file.close()
        body = settable(wanted.get("destination") or {})
        body.setdefault("contentType", sources[0].body["contentType"])
        body["componentCount"] = sum(source.body.get("componentCount", 1) for source in sources)
        body["crc32c"] = crc32c
        size = sum(source.size for source in sources)
        stored = self.commit(bucket, name, call.query, draft, size, body)
        return Answer(self.show(stored, call.base_url))

    def _sources(self, bucket: str, wanted: Any) -> list[Stored]:
        if not isinstance(wanted, list) or not wanted:
            raise invalid("You must provide at least one source component.", reason="required")
        if len(wanted) > _MOST_SOURCES:
            raise invalid(
                f"The number of source components provided ({len(wanted)}) exceeds the maximum "
                f"({_MOST_SOURCES})"
            )
        sources = []
        for each in wanted:
            if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                raise invalid("Invalid argument: sourceObjects")
            found = self.find(bucket, each["name"])
            generation = each.get("generation")
            if found is None or (generation and str(generation) != str(found.generation)):
                raise no_such_object(bucket, each["name"])
            conditions = each.get("objectPreconditions") or {}
            texts = {key: [str(value)] for key, value in conditions.items()}
            check_conditions(texts, found.state)
            sources.append(found)
        return sources

    def _save(self, stored: Stored) -> None:
        self._store.run(
            "INSERT OR REPLACE INTO objects VALUES (?,?,?,?,?,?,?)",
            stored.bucket,
            stored.name,
            stored.generation,
            stored.metageneration,
            stored.size,
            stored.file,
            json.dumps(stored.body),
        )


def settable(resource: Any) -> dict[str, Any]:
    """Of a resource that a client sent, what it may set."""
    if not isinstance(resource, dict):
        raise ApiError("INVALID_ARGUMENT", "Parse Error", reason="parseError")
    chosen = {key: value for key, value in resource.items() if key in _SETTABLE}
    for key, value in chosen.items():
        if key == "metadata":
            is_fine = value is None or (isinstance(value, dict) and _are_texts(value.values()))
        elif key.endswith("Hold"):
            is_fine = value is None or isinstance(value, bool)
        else:
            # Most of these become headers of downloads: no control characters in them.
            is_fine = _are_texts([value]) and not _CONTROL.search(value or "")
        if not is_fine:
            raise invalid(f"Invalid argument: {key}")
    return chosen


def _are_texts(values: Iterable[Any]) -> bool:
    return all(value is None or isinstance(value, str) for value in values)


def described(hasher: Hasher, resource: dict[str, Any]) -> dict[str, Any]:
    """The body of a freshly uploaded object."""
    body = {key: value for key, value in settable(resource).items() if value is not None}
    return {**body, "md5Hash": hasher.md5, "crc32c": hasher.crc32c}


def _stored(row: tuple[Any, ...]) -> Stored:
    bucket, name, generation, metageneration, size, file, body = row
    return Stored(bucket, name, generation, metageneration, size, file, json.loads(body))


def _concatenate(sources: list[Any], target: Path) -> str:
    import base64

    checksum = Checksum()
    with target.open("wb") as out:
        for source in sources:
            while chunk := source.read(4 * CHUNK):
                checksum.update(chunk)
                out.write(chunk)
    return base64.b64encode(checksum.digest()).decode()
