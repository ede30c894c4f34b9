"""Cloud TPU v2alpha1: adapters of v2, plus what only this version has.

Scheduling maintenance (performMaintenance…) is not emulated.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from google.cloud.tpu_v2.types import cloud_tpu as v2
from google.cloud.tpu_v2alpha1.types import cloud_tpu as alpha
from google.protobuf import json_format

from tpuctl.emulator.tpu.extended_messages import extended
from tpuctl.emulator.tpu.nodes import Nodes
from tpuctl.emulator.tpu.offerings import bad_request, name_prefix, project_and_zone
from tpuctl.emulator.tpu.queued_resource_store import node_extras
from tpuctl.emulator.tpu.request_ids import RequestIds
from tpuctl.emulator.tpu.v2alpha1_view import as_alpha, as_alpha_queued
from tpuctl.emulator.wire.operations_service import OperationsService
from tpuctl.emulator.wire.paging import requested_page
from tpuctl.emulator.wire.registry import Caller, Registry

_API = "v2alpha1"


def _as_v2(request: Any, name: str) -> Any:
    """The v2 message of that name, with all common fields."""
    message = getattr(v2, name).pb()()
    return json_format.ParseDict(
        json_format.MessageToDict(request), message, ignore_unknown_fields=True
    )


def _answered_by_v2(name: str) -> Any:
    """A handler of messages that are the same in both versions."""

    async def handle(self: Any, request: Any, caller: Caller) -> Any:
        return await getattr(self._v2, name)(request, caller)

    return handle


def _answer(message: str, **fields: Any) -> Any:
    return extended(getattr(alpha, message).pb())(**fields)


class TpuAlphaService(OperationsService):
    """Handlers of google.cloud.tpu.v2alpha1.Tpu."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self._v2: Any = registry.service("tpu")
        self._requests = RequestIds(registry)
        self._nodes = Nodes(registry)  # for their extras

    # Nodes.

    async def list_nodes(self, request: Any, caller: Caller) -> Any:
        response = await self._v2.list_nodes(_as_v2(request, "ListNodesRequest"), caller)
        nodes = [as_alpha(node, self._nodes.extras(node.name)) for node in response.nodes]
        return _answer("ListNodesResponse", nodes=nodes, next_page_token=response.next_page_token)

    async def get_node(self, request: Any, caller: Caller) -> Any:
        node = await self._v2.get_node(request, caller)
        return as_alpha(node, self._nodes.extras(node.name))

    async def create_node(self, request: Any, caller: Caller) -> Any:
        requested = json_format.MessageToDict(request.node)
        node = _as_v2(request, "CreateNodeRequest")
        model = requested.get("schedulingConfig", {}).get("provisioningModel", "STANDARD")
        if model == "FLEX_START":  # not in the discovery document; the wording is our own
            raise bad_request("FLEX_START requires a queued resource.")
        if model == "SPOT":
            node.node.scheduling_config.spot = True
        if model == "RESERVATION_BOUND":
            node.node.scheduling_config.reserved = True
        create = partial(
            self._v2.create_node, node, caller, api=_API, extras=node_extras(requested)
        )
        return await self._begin_once(
            request, f"create {request.parent}/nodes/{request.node_id}", create
        )

    async def delete_node(self, request: Any, caller: Caller) -> Any:
        delete = partial(self._v2.delete_node, request, caller, api=_API)
        return await self._begin_once(request, f"delete {request.name}", delete)

    async def update_node(self, request: Any, caller: Caller) -> Any:
        return await self._v2.update_node(_as_v2(request, "UpdateNodeRequest"), caller, api=_API)

    async def stop_node(self, request: Any, caller: Caller) -> Any:
        return await self._v2.stop_node(request, caller, api=_API)

    async def start_node(self, request: Any, caller: Caller) -> Any:
        return await self._v2.start_node(request, caller, api=_API)

    async def simulate_maintenance_event(self, request: Any, caller: Caller) -> Any:
        """On the first worker listed, or worker 0 (cloud_tpu.proto)."""
        worker = next(iter(request.worker_ids), "")
        return self._v2.simulate_maintenance(request.name, worker, _API)

    get_guest_attributes = _answered_by_v2("get_guest_attributes")

    async def _begin_once(self, request: Any, action: str, begin: Callable[[], Any]) -> Any:
        """The operation that `begin` starts, or that an earlier identical request started."""
        project, _ = project_and_zone(
            self._registry.projects, request.parent if hasattr(request, "parent") else request.name
        )
        existing = self._requests.find(project, request.request_id, action)
        if existing is not None:
            return self._operations.message(existing)
        message = await begin()
        record = self._operations.get(message.name)
        self._requests.save(project, request.request_id, action, record)
        return message

    # Queued resources.

    async def create_queued_resource(self, request: Any, caller: Caller) -> Any:
        document = json_format.MessageToDict(request.queued_resource)
        return self._operations.message(self._v2.queued_resources.create(request, document, _API))

    async def get_queued_resource(self, request: Any, caller: Caller) -> Any:
        return as_alpha_queued(self._v2.queued_resources.get(request.name))

    async def list_queued_resources(self, request: Any, caller: Caller) -> Any:
        rows, token = self._v2.queued_resources.list_page(request)
        messages = [as_alpha_queued(row) for row in rows]
        return _answer(
            "ListQueuedResourcesResponse", queued_resources=messages, next_page_token=token
        )

    async def delete_queued_resource(self, request: Any, caller: Caller) -> Any:
        return self._operations.message(self._v2.queued_resources.delete(request, _API))

    async def reset_queued_resource(self, request: Any, caller: Caller) -> Any:
        return self._operations.message(self._v2.queued_resources.reset(request, _API))

    # Read-only methods.

    async def list_reservations(self, request: Any, caller: Caller) -> Any:
        """The reservations in the settings, with name and state only."""
        prefix = name_prefix(*project_and_zone(self._registry.projects, request.parent))
        reservations = [str(name) for name in self._registry.settings.get("reservations")]
        names = sorted(name for name in reservations if name.startswith(prefix))
        rows, token = requested_page(request, names)
        state = alpha.Reservation.State.ACTIVE
        messages = [_answer("Reservation", name=name, state=state) for name in rows]
        return _answer("ListReservationsResponse", reservations=messages, next_page_token=token)

    list_accelerator_types = _answered_by_v2("list_accelerator_types")
    get_accelerator_type = _answered_by_v2("get_accelerator_type")
    list_runtime_versions = _answered_by_v2("list_runtime_versions")
    get_runtime_version = _answered_by_v2("get_runtime_version")
    generate_service_identity = _answered_by_v2("generate_service_identity")
    list_locations = _answered_by_v2("list_locations")
    get_location = _answered_by_v2("get_location")
