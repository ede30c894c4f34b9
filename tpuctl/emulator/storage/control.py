"""Storage Control v2: folders and the layout of buckets. Its other methods are not emulated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from google.cloud.storage_control_v2 import types
from google.protobuf import json_format

from tpuctl.emulator.state.errors import invalid
from tpuctl.emulator.state.operations import Arguments, Effect, Record
from tpuctl.emulator.storage.buckets.folders import DELETE, RENAME, Folder
from tpuctl.emulator.storage.requests.primitives import (
    NotModified,
    check_conditions,
    condition_not_met,
)
from tpuctl.emulator.storage.requests.user_project import check_user_project
from tpuctl.emulator.storage.service import StorageService
from tpuctl.emulator.wire.paging import name_of, requested_page
from tpuctl.emulator.wire.registry import Caller, Registry, Service


class StorageControlService(Service):
    """Handlers of google.storage.control.v2.StorageControl."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        storage = registry.service("storage")
        assert isinstance(storage, StorageService)
        self._storage = storage
        self._folders = storage.folders
        self.effects = {
            RENAME: Effect(
                finish=lambda arguments: _message(self._folders.finish_rename(arguments)),
                metadata=_rename_metadata,
            ),
            DELETE: Effect(
                finish=self._folders.forget, work=self._delete_objects, metadata=_delete_metadata
            ),
        }

    async def create_folder(self, request: Any, caller: Caller) -> Any:
        bucket, name = self._bucket(request.parent, caller), request.folder_id
        return _message(self._folders.insert(bucket, name, recursive=request.recursive))

    async def get_folder(self, request: Any, caller: Caller) -> Any:
        return _message(self._load(request, caller))

    async def list_folders(self, request: Any, caller: Caller) -> Any:
        rows = self._folders.list_all(
            self._bucket(request.parent, caller),
            request.prefix,
            request.delimiter,
            request.lexicographic_start,
            request.lexicographic_end,
        )
        picked, token = requested_page(request, rows, name_of)
        return types.ListFoldersResponse.pb()(
            folders=[_message(folder) for folder in picked], next_page_token=token
        )

    async def delete_folder(self, request: Any, caller: Caller) -> None:
        folder = self._load(request, caller)
        self._folders.delete(folder["bucket"], folder["name"])

    async def rename_folder(self, request: Any, caller: Caller) -> Any:
        folder = self._load(request, caller)
        destination = request.destination_folder_id
        record = self._folders.begin_rename(folder["bucket"], folder["name"], destination)
        return self._registry.operations.message(record)

    async def delete_folder_recursive(self, request: Any, caller: Caller) -> Any:
        folder = self._load(request, caller)
        record = self._folders.begin_delete(folder["bucket"], folder["name"])
        return self._registry.operations.message(record)

    async def get_storage_layout(self, request: Any, caller: Caller) -> Any:
        layout = self._storage.buckets.layout(self._bucket(request.name, caller))
        fields = {"locationType": layout["locationType"], "location": layout["location"]}
        fields["hierarchicalNamespace"] = layout["hierarchicalNamespace"]
        return json_format.ParseDict({"name": request.name, **fields}, types.StorageLayout.pb()())

    def _bucket(self, name: str, caller: Caller) -> str:
        """The bucket of a resource's name, which the caller's project can be billed for."""
        parts = name.split("/")
        if len(parts) < 4 or parts[0] != "projects" or parts[2] != "buckets":
            raise invalid(f"Invalid resource name: {name!r}.")
        bucket = self._registry.store.get_json("bucket", parts[3])
        check_user_project(self._registry, caller, bucket, caller.user_project)
        return parts[3]

    def _load(self, request: Any, caller: Caller) -> Folder:
        """The folder of a request, whose preconditions hold."""
        bucket, _, name = request.name.partition("/folders/")
        folder = self._folders.load(self._bucket(bucket, caller), name)
        query = {
            key: [str(getattr(request, field))]
            for field, key in (
                ("if_metageneration_match", "ifMetagenerationMatch"),
                ("if_metageneration_not_match", "ifMetagenerationNotMatch"),
            )
            if request.HasField(field)
        }
        try:
            check_conditions(query, (1, int(folder["metageneration"])))
        except NotModified:
            raise condition_not_met() from None
        return folder

    async def _delete_objects(self, arguments: Arguments, report: Callable[[str], None]) -> None:
        for name in self._folders.object_names(arguments):
            self._storage.remove_object(arguments["bucket"], name)
            await asyncio.sleep(0)


def _message(folder: Folder) -> Any:
    fields = {key: folder[key] for key in ("metageneration", "createTime", "updateTime")}
    name = f"projects/_/buckets/{folder['bucket']}/folders/{folder['name']}"
    return json_format.ParseDict({"name": name, **fields}, types.Folder.pb()())


def _rename_metadata(record: Record) -> Any:
    return types.RenameFolderMetadata.pb()(
        common_metadata=_common_metadata(record, "rename-folder"),
        source_folder_id=record.arguments["name"],
        destination_folder_id=record.arguments["destination"],
    )


def _delete_metadata(record: Record) -> Any:
    return types.DeleteFolderRecursiveMetadata.pb()(
        common_metadata=_common_metadata(record, "delete-folder-recursive"),
        folder_id=record.arguments["name"],
    )


def _common_metadata(record: Record, kind: str) -> Any:
    metadata = types.CommonLongRunningOperationMetadata.pb()(
        type_=kind, progress_percent=100 if record.is_done else -1
    )
    metadata.create_time.FromDatetime(datetime.fromtimestamp(record.started, UTC))
    metadata.update_time.FromDatetime(datetime.fromtimestamp(record.ended or record.started, UTC))
    if record.ended is not None:
        metadata.end_time.FromDatetime(datetime.fromtimestamp(record.ended, UTC))
    return metadata
