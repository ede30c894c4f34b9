"""New objects from existing ones: rewrite, copy, move, restore and compose.

Which metadata is copied was measured against Cloud Storage by kmoneil/zig-gcp in September 2026
(its docs/storage/writing-objects.md and docs/storage/buckets.md).
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from tpuctl.emulator.state.errors import ApiError, invalid, missing
from tpuctl.emulator.state.store import Store
from tpuctl.emulator.storage.buckets.buckets import Buckets
from tpuctl.emulator.storage.buckets.encryption import FIELDS as ENCRYPTION
from tpuctl.emulator.storage.buckets.encryption import SOURCE, key_hash, key_of, require_key
from tpuctl.emulator.storage.objects.contexts import merged_contexts
from tpuctl.emulator.storage.objects.object_row import StoredObject
from tpuctl.emulator.storage.objects.objects import (
    DEFAULT_TYPE,
    WRITABLE_FIELDS,
    Objects,
    writable_fields,
)
from tpuctl.emulator.storage.objects.retention import RELEASED
from tpuctl.emulator.storage.requests.primitives import (
    Answer,
    Call,
    check_conditions,
    hash_files,
    no_such_object,
    parse_number,
)
from tpuctl.emulator.wire.paging import read_token, write_token

_MAX_SOURCES = 32
_REWRITE_UNIT = 1 << 20
_TIMES = ("timeCreated", "updated", "timeStorageClassUpdated", "timeFinalized", "timeDeleted")
_SOFT_TIMES = ("softDeleteTime", "hardDeleteTime")
_HOLDS = ("eventBasedHold", "temporaryHold", "retention", RELEASED)


class Copies:
    """The methods that create an object from existing ones."""

    def __init__(self, store: Store, buckets: Buckets, objects: Objects) -> None:
        self._store = store
        self._buckets = buckets
        self._objects = objects

    def copy(self, call: Call) -> Answer:
        """copyTo and rewriteTo, which only `maxBytesRewrittenPerCall` cuts into several calls."""
        bucket, name = call.parts[6], call.parts[8]
        source = self._source(call)
        self._objects.check_write(bucket, name, call.query)
        require_key(source.body, key_hash(call.headers, SOURCE))
        kms_key = call.param("destinationKmsKeyName")
        encryption = self._objects.encryption(bucket, call.headers, kms_key)
        body = _without(source.body, *_TIMES, *_HOLDS, *ENCRYPTION, "storageClass") | encryption
        metadata = writable_fields(call.json())
        if metadata:  # replaces all of the source's metadata, including its type
            replaced = [field for field in WRITABLE_FIELDS if field != "contexts"]
            body = _without(body, *replaced) | _without_nulls(metadata)
        if "custom" in call.query.get("dropContextGroups", ()) and "contexts" not in metadata:
            body = _without(body, "contexts")
        done = self._rewritten_bytes(call, source, body.get("storageClass"))
        if done < source.size:
            return Answer(
                {
                    "kind": "storage#rewriteResponse",
                    "totalBytesRewritten": str(done),
                    "objectSize": str(source.size),
                    "done": False,
                    "rewriteToken": write_token(json.dumps([_state_of(call, source), done])),
                }
            )
        stored = self._objects.commit(
            bucket, name, call.query, self._link_draft(source), source.size, body
        )
        resource = self._objects.show(stored, call.base_url, digest=key_of(stored.body))
        if call.parts[4] == "copyTo":
            return Answer(resource)
        return Answer(
            {
                "kind": "storage#rewriteResponse",
                "totalBytesRewritten": str(stored.size),
                "objectSize": str(stored.size),
                "done": True,
                "resource": resource,
            }
        )

    def _rewritten_bytes(self, call: Call, source: StoredObject, storage_class: Any) -> int:
        """How much of the source has been copied after this call.

        The limit concerns copies to another location or storage class, and is a multiple of 1 MiB:
        cloud.google.com/storage/docs/json_api/v1/objects/rewrite.
        """
        limit, text = call.number("maxBytesRewrittenPerCall", 0), call.param("rewriteToken")
        if limit < 0 or limit % _REWRITE_UNIT:
            raise invalid(
                "maxBytesRewrittenPerCall must be an integral multiple of 1 MiB (1048576)."
            )
        done = 0
        if text:
            try:
                state, done = json.loads(read_token(text))
            except (ApiError, TypeError, ValueError):
                state = None
            if state != _state_of(call, source):
                raise missing("The rewrite token is no longer available.", http=410)
        target, origin = self._buckets.load(call.parts[6]), self._buckets.load(source.bucket)
        is_far = target["location"] != origin["location"]
        is_other = (storage_class or target["storageClass"]) != source.body["storageClass"]
        return int(done) + limit if limit and (is_far or is_other) else source.size

    def move(self, call: Call) -> Answer:
        """moveTo: an atomic rename within a bucket."""
        bucket, name = call.parts[1], call.parts[6]
        source = self._source(call)
        self._objects.check_write(bucket, name, call.query)
        if name == source.name:
            raise invalid("The source and destination of a move must be different objects.")
        owner = self._buckets.load(bucket)
        stored = self._objects.commit(
            bucket,
            name,
            call.query,
            self._link_draft(source),
            source.size,
            _without(source.body, *_TIMES, "retention"),
            lambda _: self._objects.retire(source, owner),
        )
        return Answer(self._objects.show(stored, call.base_url))

    def restore(self, call: Call) -> Answer:
        """A new version from a soft-deleted one, which stays soft-deleted."""
        bucket, name = call.parts[1], call.parts[3]
        self._objects.require_soft_delete(self._buckets.load(bucket))
        if not call.param("generation"):
            raise invalid("Required parameter: generation", reason="required")
        source = self._objects.versions.find(
            bucket, name, call.number("generation", 0), is_soft_deleted=True
        )
        if source is None:
            raise no_such_object(bucket, name)
        self._objects.check_write(bucket, name, call.query)
        body = _without(source.body, *_TIMES, *_SOFT_TIMES, *_HOLDS)
        stored = self._objects.commit(
            bucket, name, call.query, self._link_draft(source), source.size, body
        )
        return Answer(self._objects.show(stored, call.base_url))

    async def compose(self, call: Call) -> Answer:
        bucket, name = call.parts[1], call.parts[3]
        request = call.json()
        self._objects.check_write(bucket, name, call.query)
        sources = self._sources(bucket, request.get("sourceObjects"))
        for source in sources:
            require_key(source.body, key_hash(call.headers))
        encryption = self._objects.encryption(bucket, call.headers, call.param("kmsKeyName"))
        draft = self._objects.files.new_draft()
        # Opened before the first await: deleted sources stay readable.
        opened = [self._objects.files.open(source.file) for source in sources]
        try:
            hasher = await asyncio.to_thread(hash_files, opened, draft)
        finally:
            for file in opened:
                file.close()
        body = _without_nulls(writable_fields(request.get("destination") or {}))
        if "destination" not in request:  # else none, as Google's Python client expects
            body["contentType"] = DEFAULT_TYPE
        if "contexts" not in body and "custom" not in call.query.get("dropContextGroups", ()):
            contexts = merged_contexts(source.body.get("contexts") for source in sources)
            body |= {"contexts": contexts} if contexts else {}
        body["componentCount"] = sum(source.body.get("componentCount", 1) for source in sources)
        body |= {"crc32c": hasher.crc32c, **encryption}

        def drop_sources(stored: StoredObject) -> None:
            owner = self._buckets.load(bucket)
            for source in dict.fromkeys((source.name, source.generation) for source in sources):
                current = self._objects.find(bucket, *source)
                if current is not None and current.generation != stored.generation:
                    self._objects.retire(current, owner, for_good=True)

        on_commit = drop_sources if request.get("deleteSourceObjects") is True else None
        stored = self._objects.commit(bucket, name, call.query, draft, hasher.size, body, on_commit)
        resource = self._objects.show(stored, call.base_url, digest=key_of(stored.body))
        return Answer(resource)

    def _source(self, call: Call) -> StoredObject:
        """The source of a copy, after checking the request's preconditions on it."""
        bucket, name = call.parts[1], call.parts[3]
        self._buckets.load(bucket)
        text = call.param("sourceGeneration")
        generation = parse_number("sourceGeneration", text) if text else None
        source = self._objects.find(bucket, name, generation)
        if source is None:
            raise no_such_object(bucket, name)
        check_conditions(call.query, source.state, prefix="ifSource")
        return source

    def _link_draft(self, source: StoredObject) -> Path:
        """A hard link to the source's bytes, as a draft."""
        draft = self._objects.files.new_draft()
        os.link(self._objects.files.path(source.file), draft)
        return draft

    def _sources(self, bucket: str, entries: Any) -> list[StoredObject]:
        if not isinstance(entries, list) or not entries:
            raise invalid("You must provide at least one source component.", reason="required")
        if len(entries) > _MAX_SOURCES:
            raise invalid(
                f"The number of source components provided ({len(entries)}) exceeds the maximum "
                f"({_MAX_SOURCES})"
            )
        sources = []
        for entry in entries:
            if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                raise invalid("Invalid argument: sourceObjects")
            self._buckets.require("storage.objects.get", bucket, entry["name"])
            text = entry.get("generation")
            generation = parse_number("generation", str(text)) if text else None
            source = self._objects.find(bucket, entry["name"], generation)
            if source is None:
                raise no_such_object(bucket, entry["name"])
            conditions = entry.get("objectPreconditions") or {}
            if not isinstance(conditions, dict):
                raise invalid("Invalid argument: objectPreconditions")
            live = self._objects.find(bucket, entry["name"])
            check_conditions(
                {key: [str(value)] for key, value in conditions.items()},
                (live.generation if live else 0, source.metageneration),
            )
            sources.append(source)
        return sources


def _state_of(call: Call, source: StoredObject) -> list[Any]:
    """What a rewrite token is for."""
    return [source.path, source.generation, call.parts[6], call.parts[8]]


def _without(body: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key not in keys}


def _without_nulls(resource: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in resource.items() if value is not None}
