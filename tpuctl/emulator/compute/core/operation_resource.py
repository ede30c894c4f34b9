"""A Compute Engine operation resource, from the stored record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tpuctl.emulator.compute.core.messages import LINK
from tpuctl.emulator.state.operations import Record
from tpuctl.emulator.state.pacific_time import pacific_text

_HTTP: Mapping[int, str] = {
    400: "BAD REQUEST",
    403: "FORBIDDEN",
    404: "NOT FOUND",
    409: "CONFLICT",
    412: "PRECONDITION FAILED",
    503: "SERVICE UNAVAILABLE",
}


def show(record: Record) -> dict[str, Any]:
    """The JSON form of a Compute Engine Operation message."""
    value: dict[str, Any] = {
        "kind": "compute#operation",
        "id": record.arguments["id"],
        "name": record.name.rpartition("/")[2],
        "operationType": record.arguments["verb"],
        "targetLink": LINK + str(record.arguments.get("shown_target", record.arguments["target"])),
        "status": "DONE" if record.is_done else "RUNNING",
        "progress": 100 if record.is_done else 0,
        "user": record.arguments["user"],
        "insertTime": pacific_text(record.started),
        "startTime": pacific_text(record.started),
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
        value["endTime"] = pacific_text(record.ended)
    if record.error is not None:
        value.update(_error_fields(record.error))
    return value


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
