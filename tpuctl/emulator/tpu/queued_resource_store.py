"""Stored queued resources: JSON that covers all versions of the API."""

from __future__ import annotations

import time
from typing import Any

from google.cloud.tpu_v2.types import cloud_tpu
from google.protobuf import json_format

from tpuctl.emulator.state.store import Store

QUEUED = "tpu.queued"  # kind in the store
Document = dict[str, Any]

# JSON names of fields that only v2alpha1 has.
_NODE_EXTRAS = ("bootDiskConfig", "autocheckpointEnabled")
_SCHEDULING_EXTRAS = ("provisioningModel", "reservationName")

# The data field of each state; newer states have none.
_STATE_DATA = {
    "CREATING": "creatingData",
    "ACCEPTED": "acceptedData",
    "PROVISIONING": "provisioningData",
    "FAILED": "failedData",
    "DELETING": "deletingData",
    "ACTIVE": "activeData",
    "SUSPENDING": "suspendingData",
    "SUSPENDED": "suspendedData",
}


class QueuedResourceStore:
    """Documents by full name, in the API's JSON form; internal data is under "_"."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def find(self, name: str) -> Document | None:
        return self._store.get_json(QUEUED, name)

    def all(self, prefix: str = "") -> list[Document]:
        return self._store.list_json(QUEUED, prefix)

    def save(self, document: Document) -> None:
        self._store.put_json(QUEUED, document["name"], document)

    def delete(self, name: str) -> None:
        self._store.delete(QUEUED, name)

    def set_state(
        self,
        document: Document,
        state: str,
        data: dict[str, Any] | None = None,
        *,
        initiator: str = "",
    ) -> None:
        """Set the state and its start time, and save."""
        document["state"] = {"state": state}
        if state in _STATE_DATA:
            document["state"][_STATE_DATA[state]] = data or {}
        if initiator:
            document["state"]["stateInitiator"] = initiator
        document.setdefault("_", {})["state_since"] = time.time()
        self.save(document)


def as_shown(document: Document) -> Document:
    """With what Google adds to the nodes of a request: docs.cloud.google.com/tpu/docs, "Serve
    Qwen3-8B-Base with vLLM" and others."""
    project, location = document["_"].get("project"), document["name"].split("/")[3]
    if project is None:  # of an older local cloud
        return document
    parent = f"projects/{project}/locations/{location}"
    queued_id = document["name"].rpartition("/")[2]
    fields = ("bootDisk", "schedulingConfig", "serviceAccount", "shieldedInstanceConfig")
    specs = []
    for spec in document["tpu"]["nodeSpec"]:
        node = {
            **{field: {} for field in fields},
            **spec["node"],
            "queuedResource": f"{parent}/queuedResources/{queued_id}",
            "useTpuVm": True,
        }
        specs.append({**spec, "node": node, "parent": parent})
    return {**document, "tpu": {"nodeSpec": specs}}


def state_of(document: Document) -> str:
    return str(document["state"]["state"])


def node_of(spec: Document) -> Any:
    """The node of a spec; once admitted, with its accelerator type by name."""
    node = json_format.ParseDict(spec["node"], cloud_tpu.Node.pb()(), ignore_unknown_fields=True)
    if spec.get("_type"):
        node.accelerator_type = spec["_type"]
        node.ClearField("accelerator_config")
    return node


def node_names(document: Document) -> list[str]:
    """The full names of its nodes, created or not."""
    location = document["name"].partition("/queuedResources/")[0]
    return [f"{location}/nodes/{spec['nodeId']}" for spec in document["tpu"]["nodeSpec"]]


def node_extras(node: Document) -> Document:
    """What only v2alpha1 has of a node, which is stored apart from it."""
    scheduling = node.get("schedulingConfig", {})
    of_alpha = {field: scheduling[field] for field in _SCHEDULING_EXTRAS if field in scheduling}
    extras = {field: node[field] for field in _NODE_EXTRAS if field in node}
    return {**extras, "schedulingConfig": of_alpha} if of_alpha else extras


def is_flex_start(document: Document) -> bool:
    return document.get("provisioningModel") == "FLEX_START"


def is_reserved(document: Document) -> bool:
    return "reservationName" in document or bool(document.get("guaranteed", {}).get("reserved"))


def is_spot(document: Document, spec: Document) -> bool:
    """Whether its nodes count against preemptible quota; flex-start nodes do
    (docs.cloud.google.com/tpu/docs/request-using-flex-start). Best effort's: a guess."""
    if "spot" in document or "bestEffort" in document or is_flex_start(document):
        return True
    if document.get("provisioningModel") == "SPOT":
        return True
    scheduling = spec["node"].get("schedulingConfig", {})
    return bool(scheduling.get("spot") or scheduling.get("preemptible"))
