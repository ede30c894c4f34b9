"""Queued resources as they are kept: JSON that holds what every version of the API can say."""

from __future__ import annotations

import time
from typing import Any

from google.cloud.tpu_v2.types import cloud_tpu
from google.protobuf import json_format

from tpuctl.emulator.state.store import Store

__all__ = [
    "NODE_EXTRAS",
    "QUEUED",
    "Document",
    "QueuedStore",
    "is_flex_start",
    "is_spot",
    "node_names",
    "node_of",
    "state_of",
]

QUEUED = "tpu.queued"  # the kind of the store
Document = dict[str, Any]

# What v2's nodes cannot hold and v2alpha1's can, by its JSON name; kept beside the nodes.
NODE_EXTRAS = ("bootDiskConfig", "autocheckpointEnabled")

# The field that tells more about a state; the newest state has none.
_DATA = {
    "CREATING": "creatingData",
    "ACCEPTED": "acceptedData",
    "PROVISIONING": "provisioningData",
    "FAILED": "failedData",
    "DELETING": "deletingData",
    "ACTIVE": "activeData",
    "SUSPENDING": "suspendingData",
    "SUSPENDED": "suspendedData",
}


class QueuedStore:
    """By full name. A document has the fields of the API's JSON; what is ours stands under "_"."""

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

    def enter(
        self,
        document: Document,
        state: str,
        data: dict[str, Any] | None = None,
        *,
        initiator: str = "",
    ) -> None:
        """Put it into a state, now."""
        document["state"] = {"state": state}
        if state in _DATA:
            document["state"][_DATA[state]] = data or {}
        if initiator:
            document["state"]["stateInitiator"] = initiator
        document.setdefault("_", {})["since"] = time.time()
        self.save(document)


def state_of(document: Document) -> str:
    return str(document["state"]["state"])


def node_of(spec: Document) -> Any:
    """The node that one of the specs asks for; once admitted, its accelerator type by name."""
    node = json_format.ParseDict(spec["node"], cloud_tpu.Node.pb()(), ignore_unknown_fields=True)
    if spec.get("_type"):
        node.accelerator_type = spec["_type"]
        node.ClearField("accelerator_config")
    return node


def node_names(document: Document) -> list[str]:
    """The full names of its nodes, made or not."""
    place = document["name"].partition("/queuedResources/")[0]
    return [f"{place}/nodes/{spec['nodeId']}" for spec in document["tpu"]["nodeSpec"]]


def is_flex_start(document: Document) -> bool:
    return document.get("provisioningModel") == "FLEX_START"


def is_spot(document: Document, spec: Document) -> bool:
    """Whether its nodes count against the quota of preemptible ones; flex-start's do
    (docs.cloud.google.com/tpu/docs/request-using-flex-start). Best effort's: a guess."""
    if "spot" in document or "bestEffort" in document or is_flex_start(document):
        return True
    if document.get("provisioningModel") == "SPOT":
        return True
    scheduling = spec["node"].get("schedulingConfig", {})
    return bool(scheduling.get("spot") or scheduling.get("preemptible"))
