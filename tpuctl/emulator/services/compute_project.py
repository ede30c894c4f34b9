"""Compute Engine's view of a project: metadata that all its machines share."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format

from tpuctl.emulator.operations import Arguments, Effect
from tpuctl.emulator.services.compute import LINK, message_of
from tpuctl.emulator.status import ApiError, invalid
from tpuctl.emulator.world import Caller

if TYPE_CHECKING:
    from tpuctl.emulator.services.compute import ComputeService

__all__ = ["Projects"]

_KIND = "compute.metadata"


class Projects:
    """The project resource and its common instance metadata."""

    def __init__(self, service: ComputeService) -> None:
        self._service = service
        self._store = service.world.store
        self.effects: Mapping[str, Effect] = {
            "compute.projects.setMetadata": Effect(self._metadata_set)
        }

    async def get(self, request: Any, caller: Caller) -> Any:
        project = self._service.world.projects.require(request.project, "compute.googleapis.com")
        items = self._items(project["id"])
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
                "defaultServiceAccount": (
                    f"{project['number']}-compute@developer.gserviceaccount.com"
                ),
                "defaultNetworkTier": "PREMIUM",
                "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
                "selfLink": f"{LINK}projects/{project['id']}",
            },
        )

    async def set_common_instance_metadata(self, request: Any, caller: Caller) -> Any:
        project = self._service.project(request.project)
        wanted = json_format.MessageToDict(request.metadata_resource)
        items = wanted.get("items", [])
        keys = [item.get("key", "") for item in items]
        if len(set(keys)) < len(keys) or not all(keys):
            raise invalid("Invalid value for field 'metadata': keys must be there, and once.")
        self._check(wanted.get("fingerprint", ""), self._items(project))
        return self._service.begin(
            "compute.projects.setMetadata",
            "compute.projects.setCommonInstanceMetadata",
            f"projects/{project}",
            "compute.metadata",
            caller,
            {"items": items, "fingerprint": wanted.get("fingerprint", "")},
            request.request_id,
        )

    @staticmethod
    def _check(given: str, items: list[dict[str, str]]) -> None:
        # Without a fingerprint only metadata that is still empty may be set.
        if given != fingerprint(items) and (given or items):
            raise ApiError(
                "FAILED_PRECONDITION",
                "Supplied fingerprint does not match current metadata fingerprint.",
                reason="conditionNotMet",
                http=412,
            )

    def _items(self, project: str) -> list[dict[str, str]]:
        found = self._store.get_json(_KIND, project)
        return list(found["items"]) if found else []

    def _metadata_set(self, arguments: Arguments) -> None:
        project = arguments["target"].split("/")[1]
        self._store.put_json(_KIND, project, {"items": arguments["items"]})


def fingerprint(value: Any) -> str:
    """A hash that changes with the value, in base64 as Google's are."""
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
    return base64.urlsafe_b64encode(digest[:8]).decode()
