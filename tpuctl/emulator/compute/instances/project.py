"""The Compute Engine project resource: common instance metadata, quotas, reports of usage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tpuctl.emulator.compute.core.context import ComputeContext
from tpuctl.emulator.compute.core.errors import condition_not_met, unknown_reference
from tpuctl.emulator.compute.core.fingerprint import fingerprint
from tpuctl.emulator.compute.core.messages import LINK, as_row, message_of
from tpuctl.emulator.compute.networks.shared_vpc import SharedVpcMethods
from tpuctl.emulator.state.errors import invalid
from tpuctl.emulator.state.operations import Arguments, Effect
from tpuctl.emulator.state.pacific_time import pacific_text
from tpuctl.emulator.state.project_metadata import (
    CONSTRAINT,
    METADATA,
    Items,
    disables_os_login,
    project_metadata,
)
from tpuctl.emulator.state.shared_vpc import HOSTS
from tpuctl.emulator.wire.registry import Caller

_USAGE_EXPORT = "compute.usageExportLocation"


class Projects(SharedVpcMethods):
    """The project resource and its common instance metadata."""

    def __init__(
        self, context: ComputeContext, quotas: Callable[[str], list[dict[str, Any]]]
    ) -> None:
        """`quotas` returns the project-wide quotas."""
        super().__init__(context)
        self._quotas = quotas
        self.effects: Mapping[str, Effect] = {
            **self.effects,
            "compute.projects.setMetadata": Effect(self._finish_set_metadata),
            "compute.projects.setUsageExportBucket": Effect(self._finish_set_usage_export_bucket),
        }

    async def get(self, request: Any, caller: Caller) -> Any:
        project = self._context.registry.projects.require(request.project, "compute.googleapis.com")
        return message_of("Project", self.resource_of(project["id"]))

    def resource_of(self, project: str) -> dict[str, Any]:
        record = self._context.registry.projects.require(project)
        items = self.items(project)
        location = self._store.get_json(_USAGE_EXPORT, project)
        is_host = self._store.get(HOSTS, project) is not None
        return {
            **({"usageExportLocation": location} if location else {}),
            "kind": "compute#project",
            "id": str(record["number"]),
            "name": project,
            "creationTimestamp": pacific_text(record["created"]),
            "commonInstanceMetadata": {
                "kind": "compute#metadata",
                "fingerprint": fingerprint(items),
                "items": items,
            },
            "quotas": self._quotas(project),
            "defaultServiceAccount": (f"{record['number']}-compute@developer.gserviceaccount.com"),
            "defaultNetworkTier": "PREMIUM",
            "xpnProjectStatus": "HOST" if is_host else "UNSPECIFIED_XPN_PROJECT_STATUS",
            "selfLink": f"{LINK}projects/{project}",
        }

    async def set_common_instance_metadata(self, request: Any, caller: Caller) -> Any:
        project = self._context.project(request.project)
        existing = self._context.operation_of_request(f"projects/{project}", request.request_id)
        if existing is not None:
            return existing
        body = as_row(request.metadata_resource)
        items = checked_items(self._context, project, body)
        check_fingerprint(body.get("fingerprint", ""), self.items(project))
        return self._context.begin(
            "compute.projects.setMetadata",
            "compute.projects.setCommonInstanceMetadata",
            f"projects/{project}",
            "compute.metadata",
            caller,
            {"items": items, "fingerprint": body.get("fingerprint", "")},
            request.request_id,
        )

    async def set_usage_export_bucket(self, request: Any, caller: Caller) -> Any:
        """Where reports of usage go, or nowhere without a bucket. No report is written here."""
        project = self._context.project(request.project)
        existing = self._context.operation_of_request(f"projects/{project}", request.request_id)
        if existing is not None:
            return existing
        location = as_row(request.usage_export_location_resource)
        bucket = location.get("bucketName", "").rpartition("/")[2]
        if bucket and self._store.get("bucket", bucket) is None:
            field = "resource.bucketName"
            raise unknown_reference(field, location["bucketName"], "bucket")  # a guess
        return self._context.begin(
            "compute.projects.setUsageExportBucket",
            "setUsageExportBucket",
            f"projects/{project}",
            "compute.projects",
            caller,
            {"location": location if bucket else {}},
            request.request_id,
        )

    def items(self, project: str) -> Items:
        """The common instance metadata of the project."""
        return project_metadata(self._store, project)

    def _finish_set_usage_export_bucket(self, arguments: Arguments) -> None:
        project = arguments["target"].split("/")[1]
        if arguments["location"]:
            self._store.put_json(_USAGE_EXPORT, project, arguments["location"])
        else:
            self._store.delete(_USAGE_EXPORT, project)

    def _finish_set_metadata(self, arguments: Arguments) -> None:
        project = arguments["target"].split("/")[1]
        self._store.put_json(METADATA, project, {"items": arguments["items"]})
        for service in self._context.registry.machine_services():
            service.reconfigure_all(project)


def checked_items(context: ComputeContext, project: str, body: Mapping[str, Any]) -> Items:
    """The metadata items of a request in a project, validated."""
    items = [
        {"key": item.get("key", ""), "value": item.get("value", "")}
        for item in body.get("items", [])
    ]
    keys = [item["key"] for item in items]
    if len(set(keys)) < len(keys) or not all(keys):
        raise invalid("Invalid value for field 'metadata': keys must be present and unique.")
    if disables_os_login(context.registry.store, project, items):
        number = context.registry.projects.require(project)["number"]
        # Wording: reports in tests/unit/seen_texts.toml.
        raise condition_not_met(
            f"Constraint constraints/{CONSTRAINT} violated for project {number}."
        )
    return items


def check_fingerprint(requested: str, items: Items) -> None:
    """Refuse a change based on outdated metadata."""
    # Without a fingerprint only metadata that is still empty may be set.
    if requested != fingerprint(items) and (requested or items):
        raise condition_not_met("Supplied fingerprint does not match current metadata fingerprint.")
