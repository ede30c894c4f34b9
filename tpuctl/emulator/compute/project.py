"""Compute Engine's view of a project: metadata that all its machines share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from tpuctl.emulator.compute.collection import fingerprint
from tpuctl.emulator.compute.context import ComputeContext
from tpuctl.emulator.compute.errors import condition_not_met
from tpuctl.emulator.compute.messages import LINK, as_row, message_of
from tpuctl.emulator.state.errors import invalid
from tpuctl.emulator.state.operations import Arguments, Effect
from tpuctl.emulator.wire.registry import Caller

__all__ = ["Projects", "check_fingerprint", "checked_items"]

Items = list[dict[str, str]]

_KIND = "compute.metadata"


class Projects:
    """The project resource and its common instance metadata."""

    def __init__(
        self, context: ComputeContext, quotas: Callable[[str], list[dict[str, Any]]]
    ) -> None:
        """`quotas` tells what the project as a whole uses."""
        self._context = context
        self._quotas = quotas
        self._store = context.world.store
        self.effects: Mapping[str, Effect] = {
            "compute.projects.setMetadata": Effect(self._metadata_set)
        }

    async def get(self, request: Any, caller: Caller) -> Any:
        project = self._context.world.projects.require(request.project, "compute.googleapis.com")
        items = self.items(project["id"])
        created = datetime.fromtimestamp(project["created"], UTC)
        return message_of(
            "Project",
            {
                "kind": "compute#project",
                "id": str(project["number"]),
                "name": project["id"],
                "creationTimestamp": created.isoformat(timespec="milliseconds"),
                "commonInstanceMetadata": {
                    "kind": "compute#metadata",
                    "fingerprint": fingerprint(items),
                    "items": items,
                },
                "quotas": self._quotas(project["id"]),
                "defaultServiceAccount": (
                    f"{project['number']}-compute@developer.gserviceaccount.com"
                ),
                "defaultNetworkTier": "PREMIUM",
                "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
                "selfLink": f"{LINK}projects/{project['id']}",
            },
        )

    async def set_common_instance_metadata(self, request: Any, caller: Caller) -> Any:
        project = self._context.project(request.project)
        again = self._context.begun_before(f"projects/{project}", request.request_id)
        if again is not None:
            return again
        wanted = as_row(request.metadata_resource)
        items = checked_items(wanted)
        check_fingerprint(wanted.get("fingerprint", ""), self.items(project))
        return self._context.begin(
            "compute.projects.setMetadata",
            "compute.projects.setCommonInstanceMetadata",
            f"projects/{project}",
            "compute.metadata",
            caller,
            {"items": items, "fingerprint": wanted.get("fingerprint", "")},
            request.request_id,
        )

    def items(self, project: str) -> Items:
        """The metadata that all machines of the project share."""
        found = self._store.get_json(_KIND, project)
        return list(found["items"]) if found else []

    def _metadata_set(self, arguments: Arguments) -> None:
        project = arguments["target"].split("/")[1]
        self._store.put_json(_KIND, project, {"items": arguments["items"]})
        for service in self._context.world.machine_services():
            service.reconfigure_all(project)


def checked_items(wanted: Mapping[str, Any]) -> Items:
    """The items of metadata that a client sent."""
    items = [
        {"key": item.get("key", ""), "value": item.get("value", "")}
        for item in wanted.get("items", [])
    ]
    keys = [item["key"] for item in items]
    if len(set(keys)) < len(keys) or not all(keys):
        raise invalid("Invalid value for field 'metadata': keys must be there, and once.")
    return items


def check_fingerprint(given: str, items: Items) -> None:
    """Refuse a change that was made up from metadata which is not there any more."""
    # Without a fingerprint only metadata that is still empty may be set.
    if given != fingerprint(items) and (given or items):
        raise condition_not_met("Supplied fingerprint does not match current metadata fingerprint.")
