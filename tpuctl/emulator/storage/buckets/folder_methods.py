"""The JSON API's methods of folders, and of the operations that they begin."""

from __future__ import annotations

from typing import Any

from tpuctl.emulator.state.operations import Operations, Record
from tpuctl.emulator.storage.buckets.folders import Folder, Folders
from tpuctl.emulator.storage.requests.primitives import API, Answer, Call, check_conditions
from tpuctl.emulator.wire.paging import name_of, page


class FolderMethods:
    """folders.* and operations.*"""

    def __init__(self, folders: Folders, operations: Operations) -> None:
        self._folders = folders
        self._operations = operations

    def insert(self, call: Call) -> Answer:
        name = str(call.json().get("name") or "")
        recursive = call.flag("recursive")
        return Answer(_shown(self._folders.insert(call.parts[1], name, recursive=recursive)))

    def get(self, call: Call) -> Answer:
        return Answer(_shown(self._load(call)))

    def list_all(self, call: Call) -> Answer:
        texts = (call.param(name) for name in ("prefix", "delimiter", "startOffset", "endOffset"))
        rows = self._folders.list_all(call.parts[1], *texts)
        picked, token = page(rows, call.number("pageSize", 1000), call.param("pageToken"), name_of)
        answer: dict[str, Any] = {"kind": "storage#folders"}
        answer |= {"items": [_shown(folder) for folder in picked]} if picked else {}
        return Answer(answer | ({"nextPageToken": token} if token else {}))

    def delete(self, call: Call) -> Answer:
        self._folders.delete(call.parts[1], self._load(call)["name"])
        return Answer(None, 204)

    def rename(self, call: Call) -> Answer:
        source = self._load(call, "ifSource")["name"]
        record = self._folders.begin_rename(call.parts[1], source, call.parts[6])
        return Answer(self._operation(record))

    def delete_recursive(self, call: Call) -> Answer:
        name = self._load(call)["name"]
        return Answer(self._operation(self._folders.begin_delete(call.parts[1], name)))

    def get_operation(self, call: Call) -> Answer:
        name = f"projects/_/buckets/{call.parts[1]}/operations/{call.parts[3]}"
        return Answer(self._operation(self._operations.get(name)))

    def list_operations(self, call: Call) -> Answer:
        rows = self._operations.list(f"projects/_/buckets/{call.parts[1]}")
        size = call.number("pageSize", 100)
        picked, token = page(rows, size, call.param("pageToken"), name_of)
        answer: dict[str, Any] = {"kind": "storage#operations"}
        answer |= {"operations": [self._operation(record) for record in picked]} if picked else {}
        return Answer(answer | ({"nextPageToken": token} if token else {}))

    def _load(self, call: Call, prefix: str = "if") -> Folder:
        folder = self._folders.load(call.parts[1], call.parts[3])
        check_conditions(call.query, (1, int(folder["metageneration"])), prefix=prefix)
        return folder

    def _operation(self, record: Record) -> dict[str, Any]:
        from google.protobuf import json_format

        _, _, _, bucket, _, identifier = record.name.split("/")
        return {
            "kind": "storage#operation",
            "selfLink": f"{API}/b/{bucket}/operations/{identifier}",
            **json_format.MessageToDict(self._operations.message(record)),
        }


def _shown(folder: Folder) -> dict[str, Any]:
    place = f"{folder['bucket']}/{folder['name']}"
    link = f"{API}/b/{folder['bucket']}/folders/{folder['name']}"
    return {"kind": "storage#folder", "id": place, "selfLink": link, **folder}
