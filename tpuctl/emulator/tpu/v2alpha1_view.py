"""Nodes and queued resources in the form of API v2alpha1."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from google.cloud.tpu_v2alpha1.types import cloud_tpu
from google.protobuf import json_format

from tpuctl.emulator.tpu.extended_messages import extended
from tpuctl.emulator.tpu.queued_resource_store import Document, as_shown


def as_alpha(node: Any, extras: Mapping[str, Any]) -> Any:
    """A v2 node plus its extras."""
    document = json_format.MessageToDict(node)
    scheduling = {**document.get("schedulingConfig", {}), **extras.get("schedulingConfig", {})}
    document |= {**extras, "schedulingConfig": scheduling}
    if document.get("apiVersion") == "V2":
        document["apiVersion"] = "V2_ALPHA1"  # this version's enum has no V2
    message = extended(cloud_tpu.Node.pb())()
    return json_format.ParseDict(document, message, ignore_unknown_fields=True)


def as_alpha_queued(document: Document) -> Any:
    """With the termination time of its nodes, if known."""
    ends = document["_"].get("run_end")
    if ends is not None:
        termination_time = datetime.fromtimestamp(ends, UTC).isoformat().replace("+00:00", "Z")
        duration = {**document.get("runDuration", {}), "terminationTime": termination_time}
        document = {**document, "runDuration": duration}
    message = extended(cloud_tpu.QueuedResource.pb())()
    return json_format.ParseDict(as_shown(document), message, ignore_unknown_fields=True)
