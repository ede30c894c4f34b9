"""Notification configurations of buckets. There is no Pub/Sub here: nothing is published."""

from __future__ import annotations

import re
from typing import Any

from tpuctl.emulator.state.errors import invalid, missing
from tpuctl.emulator.state.store import Store
from tpuctl.emulator.storage.buckets.buckets import NOTIFICATIONS as KIND
from tpuctl.emulator.storage.buckets.buckets import Buckets
from tpuctl.emulator.storage.requests.primitives import API, Answer, Call, etag_of

_TOPIC = re.compile(r"//pubsub\.googleapis\.com/projects/[^/]+/topics/[^/]+")
_EVENTS = tuple(f"OBJECT_{event}" for event in ("FINALIZE", "METADATA_UPDATE", "DELETE", "ARCHIVE"))
_FORMATS = ("JSON_API_V1", "NONE")
_MAX_COUNT = 100


class Notifications:
    """notifications.*"""

    def __init__(self, store: Store, buckets: Buckets) -> None:
        self._store = store
        self._buckets = buckets

    def insert(self, call: Call) -> Answer:
        bucket, resource = self._bucket(call), call.json()
        topic, form = resource.get("topic"), resource.get("payload_format")
        events = resource.get("event_types") or []
        if not isinstance(topic, str) or not _TOPIC.fullmatch(topic):
            raise invalid(f"Invalid Google Cloud Pub/Sub topic: {topic}")
        if form not in _FORMATS:
            raise invalid(f"Invalid argument: payload_format {form}")
        if not isinstance(events, list) or not set(events) <= set(_EVENTS):
            raise invalid(f"Invalid argument: event_types {events}")
        if len(self._store.items(KIND, f"{bucket}/")) >= _MAX_COUNT:
            raise invalid(f"A bucket can have at most {_MAX_COUNT} notification configurations.")
        number = self._store.next(f"{KIND}/{bucket}")
        names = ("custom_attributes", "event_types", "object_name_prefix")
        stored = {
            "kind": "storage#notification",
            "id": str(number),
            "selfLink": f"{API}/b/{bucket}/notificationConfigs/{number}",
            "topic": topic,
            "payload_format": form,
            "etag": etag_of(number),
            **{name: resource[name] for name in names if resource.get(name)},
        }
        self._store.put_json(KIND, f"{bucket}/{number}", stored)
        return Answer(stored)

    def list_all(self, call: Call) -> Answer:
        rows = self._store.list_json(KIND, f"{self._bucket(call)}/")
        rows.sort(key=lambda row: int(row["id"]))
        return Answer({"kind": "storage#notifications", **({"items": rows} if rows else {})})

    def get(self, call: Call) -> Answer:
        return Answer(self._load(call))

    def delete(self, call: Call) -> Answer:
        stored = self._load(call)
        self._store.delete(KIND, f"{call.parts[1]}/{stored['id']}")
        return Answer(None, 204)

    def _bucket(self, call: Call) -> str:
        return str(self._buckets.load(call.parts[1])["name"])

    def _load(self, call: Call) -> dict[str, Any]:
        stored = self._store.get_json(KIND, f"{self._bucket(call)}/{call.parts[3]}")
        if stored is None:
            raise missing(f"Notification {call.parts[3]} not found.")
        return stored
