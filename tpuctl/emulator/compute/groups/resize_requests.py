"""Resize requests of managed groups: instances that are created together, or wait together.

docs.cloud.google.com/compute/docs/instance-groups/about-resize-requests-mig
"""

from __future__ import annotations

from typing import Any

from tpuctl.catalog import is_tpu_machine
from tpuctl.emulator.compute.core.collection import Collection, Row, check_name, idempotent
from tpuctl.emulator.compute.core.context import RESIZE_REQUESTS, ComputeContext, new_id
from tpuctl.emulator.compute.core.errors import bad_field, failed
from tpuctl.emulator.compute.core.lists import listed_names
from tpuctl.emulator.compute.core.messages import LINK, as_row
from tpuctl.emulator.compute.groups.instance_group_managers import InstanceGroupManagers
from tpuctl.emulator.compute.instances.instance_templates import find_template
from tpuctl.emulator.compute.offerings.scheduling import FLEX_START, RESERVATION_BOUND
from tpuctl.emulator.state.errors import invalid, unsupported_field
from tpuctl.emulator.state.operations import Arguments, Effect
from tpuctl.emulator.wire.registry import Caller

_RUN_SECONDS = (600, 7 * 86400)
_ACTIVE_STATES = ("CREATING", "ACCEPTED")


class ResizeRequests(Collection):
    """Requests of one group; their full names begin with its name."""

    kind, message, plural = RESIZE_REQUESTS, "InstanceGroupManagerResizeRequest", "resizeRequests"
    field, scope = "resize_request", "zones"

    def __init__(self, context: ComputeContext, managers: InstanceGroupManagers) -> None:
        super().__init__(context)
        self._managers = managers

    def verbs(self) -> dict[str, Effect]:
        return {**super().verbs(), "cancel": Effect(self._finish_cancel)}

    def collection_name(self, request: Any) -> str:
        return f"{self._managers.name_of(request)}/{self.plural}"

    def show(self, name: str, row: Row) -> Row:
        zone = name.partition("/instanceGroupManagers/")[0]
        link = f"{LINK}{name.rpartition('/')[0]}/{row['id']}"
        return {**super().show(name, row), "zone": LINK + zone, "selfLinkWithId": link}

    async def list(self, request: Any, caller: Caller) -> Any:
        base = self.collection_name(request)
        self._managers.require(base.rpartition("/")[0])
        names, message = self.names(f"{base}/"), f"{self.message}sListResponse"
        return listed_names(request, message, f"{self.type_of()}List", names, base, self.show_all)

    @idempotent
    async def insert(self, base: str, request: Any, caller: Caller) -> Any:
        row = as_row(request.instance_group_manager_resize_request_resource)
        self.check_fields(row)
        check_name(row.get("name", ""))
        name = f"{base}/{row['name']}"
        self.require_unused_name(name)
        row = {**self.complete(name, row), "id": new_id()}
        # The operation names the group: gcloud (528, waiters.py) adds the request's name to that.
        arguments = {"row": row, "shown_target": base.rpartition("/")[0]}
        return self.begin("insert", name, caller, arguments, request.request_id)

    def complete(self, name: str, row: Row) -> Row:
        group = self._managers.require(name.rpartition("/resizeRequests/")[0])
        properties = (find_template(self.context, group["instanceTemplate"]) or {})["properties"]
        if is_tpu_machine(properties["machineType"]):
            # Public reports of 2026-07.
            raise invalid(
                "Creating resize requests for managed instance group with TPU is not allowed"
            )
        if "instances" in row:
            raise unsupported_field("resource.instances")
        if row.get("resizeBy", 0) < 1:
            raise bad_field("resource.resizeBy", str(row.get("resizeBy", 0)), "Must be positive.")
        model = properties.get("scheduling", {}).get("provisioningModel")
        if "requestedRunDuration" in row:
            seconds = int(row["requestedRunDuration"].get("seconds", 0))
            least, most = _RUN_SECONDS
            if not least <= seconds <= most:
                reason = f"Must be between {least} and {most} seconds."
                raise bad_field("resource.requestedRunDuration", str(seconds), reason)
        elif model not in (FLEX_START, RESERVATION_BOUND):
            raise bad_field("resource.requestedRunDuration", "", "Must be specified.")
        return {**row, "state": "ACCEPTED"}

    def finish_insert(self, arguments: Arguments) -> None:
        super().finish_insert(arguments)
        name, row = arguments["target"], arguments["row"]
        self._managers.enlarge(name.rpartition("/resizeRequests/")[0], row["resizeBy"], row["name"])

    @idempotent
    async def cancel(self, name: str, request: Any, caller: Caller) -> Any:
        self.require(name)
        return self.begin("cancel", name, caller, {}, request.request_id)

    def _finish_cancel(self, arguments: Arguments) -> None:
        """Error text: kubernetes/autoscaler, its tests of resize requests."""
        name = arguments["target"]
        row = self.require(name)
        if row["state"] not in _ACTIVE_STATES:
            text = "Cancelling resize request that has reached a final state is not possible."
            raise failed("CONDITION_NOT_MET", text, 412)
        self.store.put_json(self.kind, name, {**row, "state": "CANCELLED"})
        self._managers.drop_request(name.rpartition("/resizeRequests/")[0], row["name"])

    def check_deletion(self, name: str) -> None:
        if self.require(name)["state"] in _ACTIVE_STATES:
            text = "Deleting resize request that has not reached a final state is not possible."
            raise failed("CONDITION_NOT_MET", text, 412)

    def operation_type(self, verb: str, arguments: Arguments) -> str:
        return f"{self.kind}.{verb}"
