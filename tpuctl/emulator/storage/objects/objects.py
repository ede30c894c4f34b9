"""Objects: find, write, change and delete them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tpuctl.emulator.state.errors import ApiError, invalid
from tpuctl.emulator.state.merge_patch import merge
from tpuctl.emulator.state.projects import now_text
from tpuctl.emulator.state.store import Store
from tpuctl.emulator.storage.buckets.access_entries import (
    DEFAULT_OBJECT_LIST,
    OBJECT_LIST,
    UPLOADER,
    Entry,
    bindings,
    requested_entries,
    team_entries,
    with_owner,
)
from tpuctl.emulator.storage.buckets.bucket_settings import (
    STORAGE_CLASSES,
    Bucket,
    is_hierarchical,
    soft_delete_seconds,
)
from tpuctl.emulator.storage.buckets.buckets import Buckets
from tpuctl.emulator.storage.buckets.encryption import (
    key_hash,
    require_key,
    visible_body,
)
from tpuctl.emulator.storage.buckets.folders import Folders
from tpuctl.emulator.storage.objects.contexts import changed_contexts
from tpuctl.emulator.storage.objects.object_row import StoredObject
from tpuctl.emulator.storage.objects.retention import (
    RELEASED,
    changed_retention,
    check_custom_time,
    check_retention,
    require_deletable,
    retained_until,
)
from tpuctl.emulator.storage.objects.versions import Versions
from tpuctl.emulator.storage.requests.primitives import (
    API,
    Answer,
    Call,
    Hasher,
    ObjectFiles,
    check_conditions,
    etag_of,
    no_such_object,
    object_path,
    parse_number,
)

DEFAULT_TYPE = "application/octet-stream"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_MAX_NAME_BYTES = 1024
WRITABLE_FIELDS = (
    "acl",
    "cacheControl",
    "contentDisposition",
    "contentEncoding",
    "contentLanguage",
    "contentType",
    "contexts",
    "customTime",
    "eventBasedHold",
    "metadata",
    "retention",
    "storageClass",
    "temporaryHold",
)
Query = Mapping[str, list[str]]


class Objects:
    """The objects of all buckets."""

    def __init__(
        self, store: Store, buckets: Buckets, folders: Folders, files: ObjectFiles
    ) -> None:
        self._store = store
        self._buckets = buckets
        self._folders = folders
        self.files = files
        self.versions = Versions(store, files)
        buckets.on_delete = self.versions.forget_bucket
        buckets.object_access = self._access

    def find(self, bucket: str, name: str, generation: int | None = None) -> StoredObject | None:
        """The live version, or the version with that generation, live or noncurrent."""
        row = self._store.row("SELECT * FROM objects WHERE bucket=? AND name=?", bucket, name)
        live = StoredObject.of(row) if row else None
        if generation is None or (live is not None and live.generation == generation):
            return live
        return self.versions.find(bucket, name, generation)

    def load(self, query: Query, bucket: str, name: str) -> StoredObject:
        """The version that the query names, after checking its preconditions.

        They apply to that version: system tests of Google's Python client read, change, and delete
        a noncurrent one with its own generation as the condition. storage-testbench compares with
        the live version.
        """
        self._buckets.load(bucket)
        texts = query.get("generation")
        generation = parse_number("generation", texts[-1]) if texts and texts[-1] else None
        stored = self.find(bucket, name, generation)
        if stored is None:
            raise no_such_object(bucket, name)
        check_conditions(query, stored.state, etag=etag_of(*stored.state))
        return stored

    def show(
        self,
        stored: StoredObject,
        base_url: str,
        bucket: Bucket | None = None,
        *,
        digest: str = "",
        is_listed: bool = False,
    ) -> dict[str, Any]:
        """The object's resource; `digest` is that of the customer-supplied key of the request."""
        body = visible_body(stored.body, digest, is_listed=is_listed)
        path = object_path(stored.bucket, stored.name)
        resource = {
            "kind": "storage#object",
            "id": f"{stored.bucket}/{stored.name}/{stored.generation}",
            "selfLink": f"{API}/{path}",
            "mediaLink": (
                f"{base_url}/download/storage/v1/{path}?generation={stored.generation}&alt=media"
            ),
            "name": stored.name,
            "bucket": stored.bucket,
            "generation": str(stored.generation),
            "metageneration": str(stored.metageneration),
            "size": str(stored.size),
            "etag": etag_of(*stored.state),
            **{key: value for key, value in body.items() if not key.startswith("_")},
        }
        until = retained_until(stored.body, bucket or self._buckets.load(stored.bucket))
        if until is not None:
            text = until.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            resource["retentionExpirationTime"] = text
        return resource

    def add_access_controls(self, value: dict[str, Any]) -> None:
        self._buckets.add_access_controls(value)

    def entries(self, stored: StoredObject, bucket: Bucket) -> list[Entry]:
        """The access control list of an object in a bucket without uniform access."""
        entries: list[Entry] | None = stored.body.get(OBJECT_LIST)
        if entries is None:
            entries = team_entries(bucket["projectNumber"])
        return with_owner(entries, stored.body)

    def set_entries(self, stored: StoredObject, entries: Sequence[Entry]) -> None:
        body = {**stored.body, OBJECT_LIST: list(entries)}
        changed = replace(stored, metageneration=stored.metageneration + 1, body=body)
        (self.versions.save if "timeDeleted" in body else self._save)(changed)

    def granted(self, bucket: str, name: str) -> list[dict[str, Any]]:
        """What an object's own list grants, as bindings of a policy."""
        record, stored = self._buckets.load(bucket), self.find(bucket, name)
        is_uniform = record["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"]
        if stored is None or is_uniform:
            return []
        entries = with_owner(stored.body.get(OBJECT_LIST, []), stored.body)
        return bindings(entries, "Object")

    def _access(self, resource: Mapping[str, Any]) -> tuple[list[Entry], str]:
        bucket, generation = resource["bucket"], int(resource["generation"])
        stored = self.find(bucket, resource["name"], generation)
        if stored is None:
            return [], ""
        owner = str(stored.body.get(UPLOADER, ""))
        return self.entries(stored, self._buckets.load(bucket)), owner

    def check_write(self, bucket: str, name: str, query: Query) -> None:
        """Check a write before its data is read; `commit` checks it again."""
        self._buckets.check_user_project(bucket, query)
        if not name or len(name.encode()) > _MAX_NAME_BYTES or "\n" in name or "\r" in name:
            if not name:
                raise invalid("No object name", reason="required")
            raise invalid("Invalid object name.")
        if name in (".", "..") or name.startswith(".well-known/acme-challenge/"):
            raise invalid("Invalid object name.")
        existing = self.find(bucket, name)
        self._buckets.require("storage.objects.create", bucket, name)
        if existing is not None:  # replacing an object deletes it
            self._buckets.require("storage.objects.delete", bucket, name)
        check_conditions(query, existing.state if existing else None)

    def load_readable(self, query: Query, bucket: str, name: str) -> StoredObject:
        """`load`, of an object whose data can be decrypted."""
        stored = self.load(query, bucket, name)
        if version := stored.body.get("kmsKeyName"):
            self._buckets.check_readable(self._buckets.load(bucket), version)
        return stored

    def encryption(
        self, bucket: str, headers: Mapping[str, str], kms_key: str = ""
    ) -> dict[str, Any]:
        """The fields of a new object for the keys that a request names."""
        return self._buckets.encryption_fields(self._buckets.load(bucket), headers, kms_key)

    def commit(
        self,
        bucket: str,
        name: str,
        query: Query,
        draft: Path,
        size: int,
        body: dict[str, Any],
        on_commit: Callable[[StoredObject], None] | None = None,
        *,
        keep_draft: bool = False,
    ) -> StoredObject:
        """Make a complete draft the object, atomically even if the process is killed.

        `on_commit` runs in the same transaction. With `keep_draft` the caller removes the draft:
        until the commit it holds the acknowledged data. Do not call this inside a transaction: the
        object's previous bytes are deleted at the end.
        """
        file = self.files.adopt(draft, keep=keep_draft)
        try:
            with self._store.transaction():
                self.check_write(bucket, name, query)
                bucket_record = self._buckets.load(bucket)
                if is_hierarchical(bucket_record):
                    self._folders.insert_parents(bucket, name)
                previous = self.find(bucket, name)
                if previous is not None:
                    self.retire(previous, bucket_record)
                now_us = time.time_ns() // 1000
                now = now_text()
                complete = {
                    "storageClass": bucket_record["storageClass"],
                    "timeCreated": now,
                    "updated": now,
                    "timeStorageClassUpdated": now,
                    "timeFinalized": now,
                    **(
                        {"eventBasedHold": True}
                        if bucket_record.get("defaultEventBasedHold")
                        else {}
                    ),
                    **body,
                    UPLOADER: self._buckets.caller_entity(),
                }
                if "retention" in complete:
                    self._buckets.require("storage.objects.setRetention", bucket, name)
                    complete["retention"] = changed_retention(
                        None, complete["retention"], bucket_record, may_override=False
                    )
                check_retention(complete)
                predefined = query.get("predefinedAcl") or query.get("destinationPredefinedAcl")
                entries = requested_entries(
                    bucket_record, "Object", complete.pop("acl", None), (predefined or [""])[-1]
                )
                complete.pop(OBJECT_LIST, None)
                if entries is None:
                    entries = bucket_record.get(DEFAULT_OBJECT_LIST)
                if entries is not None:
                    complete[OBJECT_LIST] = entries
                contexts = changed_contexts(None, complete.pop("contexts", None))
                if contexts is not None:
                    complete["contexts"] = contexts
                if "customTime" in complete:
                    complete["customTime"] = check_custom_time(None, complete["customTime"])
                stored = StoredObject(
                    bucket, name, self._store.next("generation", now_us), 1, size, file, complete
                )
                self._save(stored)
                if on_commit is not None:
                    on_commit(stored)
        except BaseException:
            self.versions.rollback()
            self.files.remove(file)
            raise
        self.versions.clean()
        return stored

    def retire(self, stored: StoredObject, bucket: Bucket, *, for_good: bool = False) -> None:
        """Remove a replaced or deleted version, inside a transaction.

        Raises ApiError if it is retained; a retained live version may still become noncurrent.
        """
        if for_good or not (bucket.get("versioning") or {}).get("enabled"):
            require_deletable(stored.path, stored.body, bucket)
        self._store.run(
            "DELETE FROM objects WHERE bucket=? AND name=? AND generation=?",
            stored.bucket,
            stored.name,
            stored.generation,
        )
        self.versions.retire(stored, bucket, for_good=for_good)

    def require_soft_delete(self, bucket: Bucket) -> None:
        if not soft_delete_seconds(bucket):  # message: kmoneil/zig-gcp, src/storage/restore.zig
            raise invalid("bucket soft delete policy must be set.")

    # Methods.

    def get(self, call: Call) -> Answer:
        bucket, name = call.parts[1], call.parts[3]
        if not call.flag("softDeleted"):
            current, digest = self.load(call.query, bucket, name), key_hash(call.headers)
            require_key(current.body, digest, is_optional=True)
            return Answer(self.show(current, call.base_url, digest=digest))
        self.require_soft_delete(self._buckets.load(bucket))
        if not call.param("generation"):
            raise invalid("Required parameter: generation", reason="required")
        generation = call.number("generation", 0)
        stored = self.versions.find(bucket, name, generation, is_soft_deleted=True)
        if stored is None:
            raise no_such_object(bucket, name)
        return Answer(self.show(stored, call.base_url))

    def delete(self, call: Call) -> Answer:
        self.remove(call.query, call.parts[1], call.parts[3])
        return Answer(None, 204)

    def remove(self, query: Query, bucket: str, name: str) -> None:
        """Delete the live version, or permanently the one with the given generation."""
        stored = self.load(query, bucket, name)
        try:
            with self._store.transaction():
                for_good = bool((query.get("generation") or [""])[-1])
                self.retire(stored, self._buckets.load(bucket), for_good=for_good)
        except BaseException:
            self.versions.rollback()
            raise
        self.versions.clean()

    def sweep(self) -> None:
        """Delete orphaned files, of writes and deletions interrupted by a kill."""
        self.versions.sweep()
        live = {row[0] for row in self._store.rows("SELECT file FROM objects")}
        live |= self.versions.files()
        for folder in self.files.objects.iterdir():
            for path in folder.iterdir():
                if path.name not in live:
                    path.unlink(missing_ok=True)

    def patch(self, call: Call) -> Answer:
        return self._change(call, is_update=False)

    def update(self, call: Call) -> Answer:
        return self._change(call, is_update=True)

    def _change(self, call: Call, *, is_update: bool) -> Answer:
        stored = self.load(call.query, call.parts[1], call.parts[3])
        digest = key_hash(call.headers)
        require_key(stored.body, digest, is_optional=True)
        body = dict(stored.body)
        if is_update:
            body = {key: value for key, value in body.items() if key not in WRITABLE_FIELDS}
            body["storageClass"] = stored.body["storageClass"]
        changes = writable_fields(call.json())
        if is_update or "retention" in changes:
            self._change_retention(stored, body, changes.pop("retention", None), call)
        if "contexts" in changes:
            contexts = changed_contexts(stored.body.get("contexts"), changes.pop("contexts"))
            body.pop("contexts", None)
            if contexts is not None:
                body["contexts"] = contexts
        bucket = self._buckets.load(stored.bucket)
        entries = requested_entries(
            bucket, "Object", changes.pop("acl", None), call.param("predefinedAcl")
        )
        if entries is not None and entries != self.entries(stored, bucket):
            self._buckets.require("storage.objects.setIamPolicy", stored.bucket, stored.name)
            body[OBJECT_LIST] = entries
        merge(body, changes)
        check_retention(body)
        custom_time = check_custom_time(stored.body.get("customTime"), body.get("customTime"))
        if custom_time is not None:
            body["customTime"] = custom_time
        body["updated"] = now_text()
        if stored.body.get("eventBasedHold") and not body.get("eventBasedHold"):
            body[RELEASED] = body["updated"]
        changed = replace(stored, metageneration=stored.metageneration + 1, body=body)
        if "timeDeleted" in body:
            self.versions.save(changed)
        else:
            self._save(changed)
        return Answer(self.show(changed, call.base_url, digest=digest))

    def _change_retention(
        self, stored: StoredObject, body: dict[str, Any], change: Any, call: Call
    ) -> None:
        before = stored.body.get("retention")
        may_override = call.flag("overrideUnlockedRetention")
        if change is not None or before is not None:
            self._buckets.require("storage.objects.setRetention", stored.bucket, stored.name)
        if may_override:
            permission = "storage.objects.overrideUnlockedRetention"
            self._buckets.require(permission, stored.bucket, stored.name)
        bucket = self._buckets.load(stored.bucket)
        after = changed_retention(before, change, bucket, may_override=may_override)
        body.pop("retention", None)
        if after is not None:
            body["retention"] = after

    def _save(self, stored: StoredObject) -> None:
        self._store.run("INSERT OR REPLACE INTO objects VALUES (?,?,?,?,?,?,?)", *stored.row())


def writable_fields(resource: Any) -> dict[str, Any]:
    """The fields of a client's resource that it may set."""
    if not isinstance(resource, dict):
        raise ApiError("INVALID_ARGUMENT", "Parse Error", reason="parseError")
    fields = {key: value for key, value in resource.items() if key in WRITABLE_FIELDS}
    for key, value in fields.items():
        if key in ("contexts", "retention"):
            is_valid = value is None or isinstance(value, dict)
        elif key == "acl":
            is_valid = value is None or isinstance(value, list)
        elif key == "metadata":
            is_valid = value is None or (isinstance(value, dict) and _are_strings(value.values()))
        elif key.endswith("Hold"):
            is_valid = value is None or isinstance(value, bool)
        elif key == "storageClass":
            is_valid = value is None or value in STORAGE_CLASSES
        else:
            # Most of these become headers of downloads: control characters are not allowed.
            is_valid = _are_strings([value]) and not _CONTROL.search(value or "")
        if not is_valid:
            raise invalid(f"Invalid argument: {key}")
    return fields


def _are_strings(values: Iterable[Any]) -> bool:
    return all(value is None or isinstance(value, str) for value in values)


def object_body(
    hasher: Hasher, resource: dict[str, Any], encryption: Mapping[str, Any]
) -> dict[str, Any]:
    """The body of a newly uploaded object."""
    body = {key: value for key, value in writable_fields(resource).items() if value is not None}
    return {**body, **encryption, "md5Hash": hasher.md5, "crc32c": hasher.crc32c}
