"""Queued resources: requests for nodes that wait for capacity, in v2 and v2alpha1."""

from __future__ import annotations

import re
import time
from typing import Any

from google.cloud.tpu_v2.types import cloud_tpu
from google.protobuf import json_format

from tpuctl import catalog
from tpuctl.catalog.flex_start import FLEX_START_DAYS
from tpuctl.emulator.state.operations import Record
from tpuctl.emulator.state.projects import Project
from tpuctl.emulator.tpu.admission import Admission, check_node_id
from tpuctl.emulator.tpu.extended_messages import extended
from tpuctl.emulator.tpu.nodes import Nodes, NodeState
from tpuctl.emulator.tpu.offerings import (
    already_exists,
    bad_request,
    name_prefix,
    not_found,
    parse_location,
    project_and_zone,
)
from tpuctl.emulator.tpu.queued_resource_lifecycle import QueuedResourceEngine
from tpuctl.emulator.tpu.queued_resource_store import (
    Document,
    QueuedResourceStore,
    as_shown,
    is_flex_start,
    is_spot,
    node_extras,
    node_names,
    node_of,
    state_of,
)
from tpuctl.emulator.tpu.quota import Demand, Quota
from tpuctl.emulator.tpu.request_ids import RequestIds
from tpuctl.emulator.wire.paging import requested_page
from tpuctl.emulator.wire.registry import Registry

_ID = re.compile(r"[A-Za-z0-9_.~+%-]+")  # cloud_tpu.proto, CreateQueuedResourceRequest
# cloud_tpu.proto, DeleteQueuedResourceRequest.force. Google's error text is unknown, as is
# whether WAITING_FOR_RESOURCES, which is newer than that text, counts as ACCEPTED.
_DELETABLE = ("ACCEPTED", "FAILED", "SUSPENDED")
_OUTPUT_ONLY = ("name", "createTime", "state", "_")
_DAY = 24 * 3600.0


def from_v2(message: Any) -> Document:
    """A v2 message in the stored form."""
    document: Document = json_format.MessageToDict(message)
    for spec in document.get("tpu", {}).get("nodeSpec", []):
        if "multisliceParams" in spec:
            spec["multiNodeParams"] = spec.pop("multisliceParams")
    return document


def as_v2_queued(document: Document) -> Any:
    """The v2 message of a queued resource."""
    message = extended(cloud_tpu.QueuedResource.pb())()
    return json_format.ParseDict(as_shown(document), message, ignore_unknown_fields=True)


def _render(document: Document, api: str) -> Any:
    if api != "v2alpha1":
        return as_v2_queued(document)
    from tpuctl.emulator.tpu.v2alpha1_view import as_alpha_queued

    return as_alpha_queued(document)


class QueuedResources:
    """Creates, reads and deletes queued resources; the engine runs them."""

    def __init__(
        self, registry: Registry, nodes: Nodes, admission: Admission, quota: Quota
    ) -> None:
        self._registry = registry
        self._nodes = nodes
        self._admission = admission
        self._quota = quota
        self._requests = RequestIds(registry)
        self._store = QueuedResourceStore(registry.store)
        self.engine = QueuedResourceEngine(registry, nodes, admission, self._store, _render)

    def get(self, name: str) -> Document:
        project, zone = project_and_zone(self._registry.projects, name)
        queued_id = name.partition("/queuedResources/")[2]
        full = f"projects/{project['id']}/locations/{zone}/queuedResources/{queued_id}"
        document = self._store.find(full)
        if document is None:
            raise not_found(name)
        return document

    def list_page(self, request: Any) -> tuple[list[Document], str]:
        """One page and the next token; `locations/-` matches all locations."""
        prefix = name_prefix(*project_and_zone(self._registry.projects, request.parent))
        return requested_page(request, self._store.all(prefix))

    def create(self, request: Any, document: Document, api: str = "v2") -> Record:
        project, zone = project_and_zone(self._registry.projects, request.parent)
        queued_id = request.queued_resource_id
        if not _ID.fullmatch(queued_id):
            raise bad_request(f'The queued resource id "{queued_id}" is invalid.')
        parent = f"projects/{project['id']}/locations/{zone}"
        name = f"{parent}/queuedResources/{queued_id}"
        existing = self._requests.find(project, request.request_id, f"create {name}")
        if existing is not None:
            return existing
        for key in _OUTPUT_ONLY:
            document.pop(key, None)
        document["name"] = name
        document["tpu"] = {"nodeSpec": self._specs(project, parent, queued_id, document)}
        is_multislice = len(document["tpu"]["nodeSpec"]) > 1
        document["_"] = {"multislice": is_multislice, "project": str(project["number"])}
        self._set_start_times(document)
        self._set_run_duration(document)
        if self._store.find(name) is not None:
            raise already_exists(name)
        for node_name in node_names(document):
            if self._nodes.find(node_name) is not None:
                raise already_exists(node_name)
        # Refused before the operation, as in reports of 2025 and 2026.
        self._quota.require(project, list(_demands(zone, document)))
        now = cloud_tpu.QueuedResource.pb()()
        now.create_time.FromNanoseconds(time.time_ns())
        document["createTime"] = now.create_time.ToJsonString()
        if document.get("queueingPolicy", {}).pop("validUntilDuration", None) is not None:
            # Shown as the moment: python-docs-samples, tpu/queued_resources_create_time_bound.
            until = now.queueing_policy.valid_until_time
            until.FromNanoseconds(int(document["_"]["valid_until"] * 10**9))
            document["queueingPolicy"]["validUntilTime"] = until.ToJsonString()
        with self._registry.store.transaction():
            self._store.set_state(document, "CREATING")
            record = self.engine.begin("create", name, api)
            self._requests.save(project, request.request_id, f"create {name}", record)
        return record

    def delete(self, request: Any, api: str = "v2") -> Record:
        project, _ = project_and_zone(self._registry.projects, request.name)
        action = f"delete {request.name}"
        existing = self._requests.find(project, request.request_id, action)
        if existing is not None:
            return existing
        document = self.get(request.name)
        state = state_of(document)
        nodes = [node for name in node_names(document) if (node := self._nodes.find(name))]
        nodes = [node for node in nodes if node.queued_resource == document["name"]]
        is_empty = state in ("ACTIVE", "SUSPENDING") and not nodes
        if state == "DELETING" or not (request.force or state in _DELETABLE or is_empty):
            raise bad_request(f"delete is not supported while in state {state}")
        with self._registry.store.transaction():
            self._store.set_state(document, "DELETING")
            self.engine.abort_pending(document["name"])
            for node in nodes:
                node.state = NodeState.DELETING
                self._nodes.save(node)
            record = self.engine.begin("delete", document["name"], api)
            self._requests.save(project, request.request_id, action, record)
        return record

    def reset(self, request: Any, api: str = "v2") -> Record:
        """Restart the machines of its nodes; disks are kept, and the state stays ACTIVE.

        A user in 2026 saw eight workers reboot in four minutes with their files intact
        (notes in yxanul/yxTPU); another was refused in state SUSPENDED (a public log of
        marin-community/marin). The wording, and that FAILED is refused too, are guesses.
        """
        document = self.get(request.name)
        state = state_of(document)
        if state != "ACTIVE":
            raise bad_request(f"reset is not supported while in state {state}")
        return self.engine.begin("reset", document["name"], api)

    def _specs(
        self, project: Project, parent: str, queued_id: str, document: Document
    ) -> list[Document]:
        """One spec per node, as gcloud expects: it counts the specs and reads their IDs.

        The defaults are from an example in docs.cloud.google.com/tpu/docs/queued-resources.
        """
        specs: list[Document] = []
        for spec in document.get("tpu", {}).get("nodeSpec", []):
            project_name, zone = parse_location(spec.get("parent", ""))
            owner = self._registry.projects.find(project_name)
            if owner is None or f"projects/{owner['id']}/locations/{zone}" != parent:
                raise bad_request(f'The parent "{spec.get("parent", "")}" of a node is invalid.')
            location = f"projects/{project['number']}/locations/{zone}"
            node = {
                "schedulingConfig": {},
                "shieldedInstanceConfig": {},
                **spec.get("node", {}),
                "queuedResource": f"{location}/queuedResources/{queued_id}",
            }
            node_spec = {"parent": location, "node": node, "_type": ""}
            admitted = self._admission.check(project, zone, node_of(node_spec), node_extras(node))
            node_spec["_type"] = admitted.accelerator.name
            node_spec["_extras"] = node_extras(node)
            for node_id in _node_ids(spec, queued_id):
                check_node_id(node_id)
                specs.append({**node_spec, "nodeId": node_id})
        if not specs:
            raise bad_request("A queued resource must have at least one node spec.")
        ids = [spec["nodeId"] for spec in specs]
        if len(set(ids)) < len(ids):
            raise bad_request("Two nodes of a queued resource have the same id.")
        return specs

    @staticmethod
    def _set_start_times(document: Document) -> None:
        """Store the start timing constraints as seconds since the epoch."""
        policy = as_v2_queued(document).queueing_policy
        kind = policy.WhichOneof("start_timing_constraints")
        now, times = time.time(), document["_"]
        if kind == "valid_until_duration":
            times["valid_until"] = now + policy.valid_until_duration.ToTimedelta().total_seconds()
        elif kind == "valid_until_time":
            times["valid_until"] = policy.valid_until_time.ToNanoseconds() / 1e9
        elif kind == "valid_after_duration":
            times["valid_after"] = now + policy.valid_after_duration.ToTimedelta().total_seconds()
        elif kind == "valid_after_time":
            times["valid_after"] = policy.valid_after_time.ToNanoseconds() / 1e9
        elif kind == "valid_interval":
            times["valid_after"] = policy.valid_interval.start_time.ToNanoseconds() / 1e9
            times["valid_until"] = policy.valid_interval.end_time.ToNanoseconds() / 1e9

    @staticmethod
    def _set_run_duration(document: Document) -> None:
        """Store the maximum run duration in seconds. The error texts are our own."""
        text = document.get("runDuration", {}).get("maxRunDuration")
        if is_flex_start(document):
            if text is None:
                raise bad_request("FLEX_START requires a max run duration.")
            if "spot" in document or "guaranteed" in document or "bestEffort" in document:
                raise bad_request("FLEX_START and a tier are mutually exclusive.")
        if text is None:
            return
        seconds = float(text.removesuffix("s"))
        if not 0 < seconds <= FLEX_START_DAYS * _DAY:
            raise bad_request(f"The max run duration must be at most {FLEX_START_DAYS} days.")
        document["_"]["max_run_seconds"] = seconds


def _node_ids(spec: Document, queued_id: str) -> list[str]:
    multi_node = spec.get("multiNodeParams")
    if multi_node is None:
        if not spec.get("nodeId"):
            raise bad_request("A node spec must have a node id or multislice parameters.")
        return [spec["nodeId"]]
    if spec.get("nodeId"):
        raise bad_request("A node id and multislice parameters are mutually exclusive.")
    count = multi_node.get("nodeCount", 0)
    if count < 2:
        raise bad_request("The node count must be greater than 1.")
    prefix = multi_node.get("nodeIdPrefix") or queued_id
    return [f"{prefix}-{index}" for index in range(count)]


def _demands(zone: str, document: Document) -> Any:
    for spec in document["tpu"]["nodeSpec"]:
        accelerator = catalog.accelerator_type(spec["_type"])
        assert accelerator is not None, "admitted"
        yield Demand(zone, accelerator, is_spot(document, spec))
