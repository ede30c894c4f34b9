"""Operations of Compute Engine: global ones, of a region, of a zone; as resources and messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tpuctl.emulator.compute.errors import not_found
from tpuctl.emulator.compute.lists import aggregated, listed
from tpuctl.emulator.compute.messages import LINK, message_of
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.state.locations import known_region, known_zone
from tpuctl.emulator.state.operations import Record
from tpuctl.emulator.wire.registry import Caller

if TYPE_CHECKING:
    from tpuctl.emulator.compute.service import ComputeService

__all__ = ["GlobalOperations", "RegionOperations", "ZoneOperations", "show"]

_LONGEST_WAIT = 110.0  # a wait may last "up to 2 minutes" before it answers unfinished
_HTTP: Mapping[int, str] = {
    400: "BAD REQUEST",
    403: "FORBIDDEN",
    404: "NOT FOUND",
    409: "CONFLICT",
    412: "PRECONDITION FAILED",
    503: "SERVICE UNAVAILABLE",
}


class GlobalOperations:
    """Operations of global resources, and the list of those of every scope."""

    def __init__(self, service: ComputeService) -> None:
        self._service = service
        self._operations = service.world.operations

    def _scope(self, request: Any) -> str:
        return f"projects/{self._service.project(request.project)}/global"

    def _get(self, request: Any) -> Record:
        name = f"{self._scope(request)}/operations/{request.operation}"
        try:
            return self._operations.get(name)
        except ApiError:
            raise not_found(name) from None

    async def get(self, request: Any, caller: Caller) -> Any:
        return message_of("Operation", show(self._get(request)))

    async def wait(self, request: Any, caller: Caller) -> Any:
        record = self._get(request)
        ended = await self._operations.wait(record.name, _LONGEST_WAIT)
        return message_of("Operation", show(ended))

    async def delete(self, request: Any, caller: Caller) -> Any:
        self._operations.forget(self._get(request).name)

    async def list(self, request: Any, caller: Caller) -> Any:
        scope = self._scope(request)
        rows = [show(record) for record in self._operations.list(scope)]
        base = f"{scope}/operations"
        return listed(request, "OperationList", "compute#operationList", rows, base)

    async def aggregated_list(self, request: Any, caller: Caller) -> Any:
        project = self._service.project(request.project)
        records = {
            record.name: record
            for pattern in ("global", "zones/*", "regions/*")
            for record in self._operations.list(f"projects/{project}/{pattern}")
        }
        return aggregated(
            request,
            "OperationAggregatedList",
            "compute#operationAggregatedList",
            sorted(records, key=lambda name: records[name].parent),
            sorted({record.parent.split("/", 2)[2] for record in records.values()}),
            "operations",
            f"projects/{project}/aggregated/operations",
            lambda names: [show(records[name]) for name in names],
        )


class ZoneOperations(GlobalOperations):
    """Operations of a zone's resources."""

    def _scope(self, request: Any) -> str:
        project = self._service.project(request.project)
        return f"projects/{project}/zones/{known_zone(request.zone)}"


class RegionOperations(GlobalOperations):
    """Operations of a region's resources."""

    def _scope(self, request: Any) -> str:
        project = self._service.project(request.project)
        return f"projects/{project}/regions/{known_region(request.region)}"


def show(record: Record) -> dict[str, Any]:
    """The JSON form of Compute's Operation message."""
    value: dict[str, Any] = {
        "kind": "compute#operation",
        "id": record.arguments["id"],
        "name": record.name.rpartition("/")[2],
        "operationType": record.arguments["verb"],
        "targetLink": LINK + record.arguments["target"],
        "status": "DONE" if record.is_done else "RUNNING",
        "progress": 100 if record.is_done else 0,
        "user": record.arguments["user"],
        "insertTime": _time_text(record.started),
        "startTime": _time_text(record.started),
        "selfLink": LINK + record.name,
    }
    if record.arguments.get("target_id"):
        value["targetId"] = record.arguments["target_id"]
    for folder, field in (("zones", "zone"), ("regions", "region")):
        if record.parent.split("/")[2] == folder:
            value[field] = LINK + record.parent
    if record.arguments.get("group"):
        value["operationGroupId"] = record.arguments["group"]
    if record.detail:
        value["statusMessage"] = record.detail
    if record.ended is not None:
        value["endTime"] = _time_text(record.ended)
    if record.error is not None:
        value.update(_error_fields(record.error))
    return value


def _time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _error_fields(serialized: bytes) -> dict[str, Any]:
    from google.rpc import error_details_pb2, status_pb2

    status = status_pb2.Status.FromString(serialized)
    error: dict[str, Any] = {"code": "INTERNAL_ERROR", "message": status.message}
    http = 500
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            error["code"], http = info.reason, int(info.metadata.get("http", "400"))
            if "more" in info.metadata:
                error["errorDetails"] = json.loads(info.metadata["more"])
    return {
        "error": {"errors": [error]},
        "httpErrorStatusCode": http,
        "httpErrorMessage": _HTTP.get(http, "INTERNAL SERVER ERROR"),
    }
