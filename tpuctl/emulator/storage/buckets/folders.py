"""Folders of buckets with a hierarchical namespace; cloud.google.com/storage/docs/folders-overview.

They are created by `insert` or with the objects below them, and stay when these are deleted.
Managed folders are another kind, of prefixes with policies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tpuctl.emulator.state.errors import ApiError, invalid, missing, unimplemented
from tpuctl.emulator.state.operations import Arguments, Operations, Record
from tpuctl.emulator.state.projects import now_text
from tpuctl.emulator.state.store import Store
from tpuctl.emulator.storage.buckets.bucket_settings import is_hierarchical
from tpuctl.emulator.storage.buckets.buckets import FOLDERS as KIND
from tpuctl.emulator.storage.buckets.buckets import MANAGED_FOLDERS, Buckets
from tpuctl.emulator.storage.requests.primitives import condition_not_met

RENAME, DELETE = "storage_control.renameFolder", "storage_control.deleteFolderRecursive"  # effects
_MAX_NAME_BYTES = 512
_LAST_CHARACTER = "\U0010ffff"

Folder = dict[str, Any]  # bucket, name, metageneration, createTime, updateTime


class Folders:
    """The folders of all buckets, for the JSON API and Storage Control. Names end in a slash."""

    def __init__(self, store: Store, buckets: Buckets, operations: Operations) -> None:
        self._store = store
        self._buckets = buckets
        self._operations = operations

    def insert(self, bucket: str, name: str, *, recursive: bool = False) -> Folder:
        self._require_hierarchy(bucket)
        name = _valid_name(name)
        if self._find(bucket, name) is not None:
            raise _exists()
        if not recursive:
            self._require_parent(bucket, name)
        with self._store.transaction():
            self.insert_parents(bucket, name)
        return self.load(bucket, name)

    def insert_parents(self, bucket: str, name: str) -> None:
        """Create the missing folders that an object's name, or a folder's, runs through."""
        absent = [folder for folder in _folders_of(name) if self._find(bucket, folder) is None]
        if absent:
            self._buckets.require("storage.folders.create", bucket, absent[0])
        now = now_text()
        for folder in absent:
            self._put({"bucket": bucket, "name": folder, "createTime": now, "updateTime": now})

    def load(self, bucket: str, name: str) -> Folder:
        self._require_hierarchy(bucket)
        folder = self._find(bucket, _valid_name(name))
        if folder is None:
            raise missing("The specified folder does not exist.")
        return folder

    def list_all(
        self, bucket: str, prefix: str = "", delimiter: str = "", start: str = "", end: str = ""
    ) -> list[Folder]:
        """With the delimiter, the prefix itself and what is one level below it."""
        self._require_hierarchy(bucket)
        if delimiter not in ("", "/"):
            raise invalid("The only supported delimiter is '/'.")
        if prefix and not prefix.endswith("/"):
            raise invalid("The prefix of folders must be empty or end with '/'.")
        return [
            folder
            for folder in self._store.list_json(KIND, f"{bucket}/{prefix}")
            if start <= folder["name"] < (end or _LAST_CHARACTER)
            and not (delimiter and "/" in folder["name"][len(prefix) : -1])
        ]

    def delete(self, bucket: str, name: str) -> None:
        name = _valid_name(name)
        if len(self.list_all(bucket, name)) > 1 or self._store.row(
            "SELECT 1 FROM objects WHERE bucket=? AND name>=? AND name<? LIMIT 1",
            *(bucket, name, name + _LAST_CHARACTER),
        ):
            raise condition_not_met("The folder you tried to delete is not empty.")
        self._store.delete(KIND, f"{bucket}/{name}")

    def begin_rename(self, bucket: str, name: str, destination: str) -> Record:
        """Start to rename a folder with all that is below it, which happens in one step."""
        name, destination = self.load(bucket, name)["name"], _valid_name(destination)
        self._check_rename(bucket, name, destination)
        if self._store.items(MANAGED_FOLDERS, f"{bucket}/{name}"):
            raise unimplemented("storage.folders.rename of a folder with managed folders")
        return self._begin(bucket, RENAME, {"name": name, "destination": destination})

    def begin_delete(self, bucket: str, name: str) -> Record:
        """Start to delete a folder with all that is below it."""
        return self._begin(bucket, DELETE, {"name": self.load(bucket, name)["name"]})

    def finish_rename(self, arguments: Arguments) -> Folder:
        """The effect, inside a transaction; returns the renamed folder."""
        bucket = arguments["bucket"]
        name = self.load(bucket, arguments["name"])["name"]
        destination = arguments["destination"]
        self._check_rename(bucket, name, destination)
        for folder in self._store.list_json(KIND, f"{bucket}/{name}"):
            self._store.delete(KIND, f"{bucket}/{folder['name']}")
            self._put({**folder, "name": destination + folder["name"][len(name) :]})
        self._store.run(
            "UPDATE objects SET name=?1||substr(name, ?2) WHERE bucket=?3 AND name>=?4 AND name<?5",
            *(destination, len(name) + 1, bucket, name, name + _LAST_CHARACTER),
        )
        return self.load(bucket, destination)

    def object_names(self, arguments: Arguments) -> list[str]:
        """The names of the objects below the folder of an operation."""
        name = arguments["name"]
        rows = self._store.rows(
            "SELECT name FROM objects WHERE bucket=? AND name>=? AND name<?",
            *(arguments["bucket"], name, name + _LAST_CHARACTER),
        )
        return [str(row[0]) for row in rows]

    def forget(self, arguments: Arguments) -> None:
        """Delete a folder's record and those below it."""
        bucket = arguments["bucket"]
        for key, _ in self._store.items(KIND, f"{bucket}/{arguments['name']}"):
            self._store.delete(KIND, key)

    def _begin(self, bucket: str, effect: str, arguments: Arguments) -> Record:
        parent = f"projects/_/buckets/{bucket}"
        return self._operations.begin(parent, effect, {"bucket": bucket, **arguments}, 0)

    def _check_rename(self, bucket: str, name: str, destination: str) -> None:
        if destination.startswith(name):
            raise invalid("A folder cannot be renamed to itself or to a folder below it.")
        if self._find(bucket, destination) is not None:
            raise _exists()
        self._require_parent(bucket, destination)

    def _require_parent(self, bucket: str, name: str) -> None:
        for parent in list(_folders_of(name))[-2:-1]:
            if self._find(bucket, parent) is None:
                raise condition_not_met("The parent folder does not exist.")

    def _require_hierarchy(self, bucket: str) -> None:
        if not is_hierarchical(self._buckets.load(bucket)):
            raise condition_not_met("The bucket does not have hierarchical namespace enabled.")

    def _find(self, bucket: str, name: str) -> Folder | None:
        return self._store.get_json(KIND, f"{bucket}/{name}")

    def _put(self, folder: Folder) -> None:
        folder.setdefault("metageneration", "1")
        self._store.put_json(KIND, f"{folder['bucket']}/{folder['name']}", folder)


def _folders_of(name: str) -> Iterator[str]:
    """a/ and a/b/ of the object a/b/c."""
    position = name.find("/")
    while position >= 0:
        yield name[: position + 1]
        position = name.find("/", position + 1)


def _valid_name(name: str) -> str:
    name = name if name.endswith("/") else f"{name}/"
    if "//" in name or name.startswith("/") or len(name.encode()) > _MAX_NAME_BYTES:
        raise invalid(f"Invalid folder name: '{name}'")
    return name


def _exists() -> ApiError:
    text = "The folder you tried to create already exists."
    return ApiError("ALREADY_EXISTS", text, reason="conflict")
