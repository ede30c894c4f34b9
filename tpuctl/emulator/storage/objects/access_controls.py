"""Methods of access control lists: of buckets, of new objects by default, and of objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tpuctl.emulator.state.errors import missing
from tpuctl.emulator.storage.buckets.access_entries import (
    Entry,
    Kind,
    bucket_control,
    checked_entries,
    default_control,
    require_lists,
)
from tpuctl.emulator.storage.buckets.bucket_settings import Bucket
from tpuctl.emulator.storage.buckets.buckets import Buckets
from tpuctl.emulator.storage.objects.object_row import StoredObject
from tpuctl.emulator.storage.objects.objects import Objects
from tpuctl.emulator.storage.requests.primitives import API, Answer, Call, etag_of, object_path

Handler = Callable[[Call], Answer]


class _List:
    """One kind of list, as the calls of its methods see it."""

    def __init__(self, buckets: Buckets, objects: Objects, name: str) -> None:
        self.name = name
        self.kind: Kind = "Bucket" if name == "bucketAccessControls" else "Object"
        self._position = 5 if name == "objectAccessControls" else 3  # of the entity in a path
        self._buckets = buckets
        self._objects = objects

    def handlers(self) -> dict[str, Handler]:
        """Its methods by HTTP verb and whether an entity is named, as `GET /`."""
        return {
            "GET": self._list,
            "POST": self._insert,
            "GET /": lambda call: self._show(call, self._entry(call)),
            "PATCH /": self._change,
            "PUT /": self._replace,
            "DELETE /": self._delete,
        }

    def _list(self, call: Call) -> Answer:
        entries = self._load(call, is_change=False)
        items = [self._show(call, entry).value for entry in entries]
        noun = "bucketAccessControls" if self.kind == "Bucket" else "objectAccessControls"
        return Answer({"kind": f"storage#{noun}", **({"items": items} if items else {})})

    def _insert(self, call: Call) -> Answer:
        resource = call.json()
        (entry,) = checked_entries([resource], self.kind, self._bucket(call))
        self._save(call, [*self._others(call, entry["entity"]), entry])
        return self._show(call, entry)

    def _change(self, call: Call) -> Answer:
        self._entry(call)
        return self._replace(call)

    def _replace(self, call: Call) -> Answer:
        """Node's client adds entries so."""
        entity = call.parts[self._position]
        resource = {**call.json(), "entity": entity}
        (entry,) = checked_entries([resource], self.kind, self._bucket(call))
        self._save(call, [*self._others(call, entity), entry])
        return self._show(call, entry)

    def _delete(self, call: Call) -> Answer:
        self._entry(call)
        self._save(call, self._others(call, call.parts[self._position]))
        return Answer(None, 204)

    def _entry(self, call: Call) -> Entry:
        entity = call.parts[self._position]
        for entry in self._load(call, is_change=call.verb not in ("GET", "HEAD")):
            if entry["entity"] == entity:
                return entry
        raise missing(f"The specified ACL entry '{entity}' does not exist.")

    def _others(self, call: Call, entity: str) -> list[Entry]:
        return [entry for entry in self._load(call, is_change=True) if entry["entity"] != entity]

    def _bucket(self, call: Call) -> Bucket:
        return self._buckets.load(call.parts[1])

    def _object(self, call: Call) -> StoredObject:
        return self._objects.load(call.query, call.parts[1], call.parts[3])

    def _load(self, call: Call, *, is_change: bool) -> list[Entry]:
        bucket = self._bucket(call)
        require_lists(bucket, self.kind, is_change=is_change)
        if self.kind == "Bucket":
            return self._buckets.entries(bucket)
        default = self._buckets.default_entries(bucket)
        if self.name == "defaultObjectAccessControls":
            return default
        return self._objects.entries(self._object(call), bucket)

    def _save(self, call: Call, entries: Iterable[Entry]) -> None:
        bucket, saved = self._bucket(call), list(entries)
        if self.kind == "Bucket":
            self._buckets.set_entries(bucket, saved)
        elif self.name == "defaultObjectAccessControls":
            self._buckets.set_default_entries(bucket, saved)
        else:
            self._objects.set_entries(self._object(call), saved)

    def _show(self, call: Call, entry: Entry) -> Answer:
        bucket, name = self._bucket(call), call.parts[1]
        if self.kind == "Bucket":
            return Answer(bucket_control(bucket, entry))
        control = default_control(bucket, entry)
        if self.name == "objectAccessControls":
            stored = self._object(call)
            control |= {
                "id": f"{name}/{stored.name}/{stored.generation}/{entry['entity']}",
                "selfLink": f"{API}/{object_path(name, stored.name)}/acl/{entry['entity']}",
                "bucket": name,
                "object": stored.name,
                "generation": str(stored.generation),
                "etag": etag_of(stored.metageneration),
            }
        return Answer(control)


def access_control_methods(
    buckets: Buckets, objects: Objects
) -> dict[tuple[str, str], tuple[str, Handler]]:
    """The methods of all lists, by verb and path pattern."""
    verbs = {
        "GET": "list",
        "POST": "insert",
        "GET /": "get",
        "PATCH /": "patch",
        "PUT /": "update",
        "DELETE /": "delete",
    }
    paths = {
        "bucketAccessControls": "b/*/acl",
        "defaultObjectAccessControls": "b/*/defaultObjectAcl",
        "objectAccessControls": "b/*/o/*/acl",
    }
    table = {}
    for name, path in paths.items():
        for key, handler in _List(buckets, objects, name).handlers().items():
            verb, slash, _ = key.partition(" /")
            table[verb, f"{path}/*" if slash else path] = (f"{name}.{verbs[key]}", handler)
    return table
