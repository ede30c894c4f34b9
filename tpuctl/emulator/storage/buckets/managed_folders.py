"""Managed folders: names of prefixes. Policies on them are not emulated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpuctl.emulator.state.errors import ApiError, invalid, missing
from tpuctl.emulator.state.projects import now_text
from tpuctl.emulator.state.store import Store
from tpuctl.emulator.storage.buckets.buckets import MANAGED_FOLDERS as KIND
from tpuctl.emulator.storage.buckets.buckets import Buckets
from tpuctl.emulator.storage.requests.primitives import (
    API,
    Answer,
    Call,
    check_conditions,
    condition_not_met,
)
from tpuctl.emulator.wire.paging import name_of, page


class ManagedFolders:
    """managedFolders.*"""

    def __init__(self, store: Store, buckets: Buckets) -> None:
        self._store = store
        self._buckets = buckets

    def insert(self, call: Call) -> Answer:
        bucket = self._buckets.load(call.parts[1])
        name = call.json().get("name")
        if not isinstance(name, str) or not name.strip("/") or len(name.encode()) > 1024:
            raise invalid(f"Invalid managed folder name: '{name}'")
        if not bucket["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"]:
            text = "Managed folders require uniform bucket-level access."
            raise condition_not_met(text)
        name = name.rstrip("/") + "/"
        if self._store.get(KIND, f"{bucket['name']}/{name}") is not None:
            text = "The managed folder you tried to create already exists."
            raise ApiError("ALREADY_EXISTS", text, reason="conflict")
        now = now_text()
        stored = {
            "kind": "storage#managedFolder",
            "id": f"{bucket['name']}/{name}",
            "selfLink": f"{API}/b/{bucket['name']}/managedFolders/{name}",
            "name": name,
            "bucket": bucket["name"],
            "createTime": now,
            "updateTime": now,
            "metageneration": "1",
        }
        self._store.put_json(KIND, f"{bucket['name']}/{name}", stored)
        return Answer(stored)

    def get(self, call: Call) -> Answer:
        return Answer(self._load(call))

    def list_all(self, call: Call) -> Answer:
        bucket = self._buckets.load(call.parts[1])["name"]
        rows = self._store.list_json(KIND, f"{bucket}/{call.param('prefix')}")
        size = call.number("pageSize", 1000)
        picked, token = page(rows, size, call.param("pageToken"), name_of)
        answer: dict[str, Any] = {"kind": "storage#managedFolders"}
        answer |= {"items": picked} if picked else {}
        return Answer(answer | ({"nextPageToken": token} if token else {}))

    def delete(self, call: Call) -> Answer:
        stored = self._load(call)
        bucket, name = stored["bucket"], stored["name"]
        if not call.flag("allowNonEmpty"):
            rows = self._store.rows(
                "SELECT 1 FROM objects WHERE bucket=? AND name>=? AND name<? LIMIT 1",
                bucket,
                name,
                name + "\U0010ffff",
            )
            if rows:
                text = "The managed folder you tried to delete is not empty."
                raise ApiError("ABORTED", text, reason="conflict")
        self._store.delete(KIND, f"{bucket}/{name}")
        return Answer(None, 204)

    def _load(self, call: Call) -> Mapping[str, Any]:
        bucket = self._buckets.load(call.parts[1])["name"]
        stored = self._store.get_json(KIND, f"{bucket}/{call.parts[3].rstrip('/')}/")
        if stored is None:
            raise missing("The specified managed folder does not exist.")
        check_conditions(call.query, (1, int(stored["metageneration"])))
        return stored
