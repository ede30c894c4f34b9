"""Compute Engine instances of a stack: the calls that controllers and TPUs have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tpuctl.engine.resource import Report
from tpuctl.errors import Conflict, NotFound, Usage
from tpuctl.model.stack.stack import Stack
from tpuctl.model.text.ssh_key_lines import ssh_keys_with
from tpuctl.resources.base import StackResource
from tpuctl.resources.machines.disk_key import disk_encryption

SECONDS = 900.0
MAX_ATTEMPTS = 8
STARTING_STATES = ("PENDING", "PROVISIONING", "STAGING", "REPAIRING")


@dataclass(frozen=True)
class ComputeInstance:
    """The calls for an instance in the stack's zone, on behalf of the resource that it is part
    of."""

    resource: StackResource
    name: str
    noun: str  # in messages: "controller"

    @property
    def where(self) -> dict[str, Any]:
        stack = self.resource.stack
        return {"project": stack.project, "zone": stack.zone, "instance": self.name}

    async def get(self) -> Any | None:
        return await self.resource.find("instances", "get", **self.where)

    async def call(self, method: str, **fields: Any) -> Any:
        """Call a method of the instance."""
        return await self.resource.call("instances", method, **self.where, **fields)

    async def wait_for(self, operation: Any, seconds: float = SECONDS) -> None:
        await self.resource.finish(operation, seconds)

    async def insert_or_adopt(
        self,
        desired: Mapping[str, Any],
        report: Report,
        *,
        check: Callable[[Any], object],
        state: str = "PROVISIONING",
        seconds: float = SECONDS,
    ) -> bool:
        """Create it, unless another program does so at the same time; returns whether one did.

        `state` is reported while it is created, for up to `seconds`.
        """
        stack = self.resource.stack
        request = {"project": stack.project, "zone": stack.zone, "instance_resource": desired}

        async def create() -> None:
            await self.resource.insert(
                "instances",
                request,
                report,
                before="requesting the machine",
                after=state,
                seconds=seconds,
            )

        existing = await self.resource.create_or_adopt(
            create, self.get, report, check=check, seconds=seconds
        )
        return existing is not None

    async def start(self, report: Report, state: str = "STAGING") -> None:
        """Start it if it is stopped; `state` is reported."""
        report(state, None)
        try:
            operation = await self.call("start_unary")
        except (Usage, Conflict):
            instance = await self.get()
            if instance is None or instance.status not in ("RUNNING", *STARTING_STATES):
                raise
        else:
            await self.wait_for(operation)

    async def update_metadata(self, desired: Mapping[str, str]) -> None:
        """Add metadata. Other keys are kept, and so are others' lines of `ssh-keys`."""

        def request(instance: Any) -> dict[str, Any]:
            items = metadata_values(instance)
            keys = ssh_keys_with(items.get("ssh-keys", ""), desired["ssh-keys"])
            items = {**items, **desired, "ssh-keys": keys}
            fingerprint = instance.metadata.fingerprint
            resource = {"fingerprint": fingerprint, "items": metadata_items(items)}
            return {"metadata_resource": resource}

        await self._modify("set_metadata_unary", request)

    async def update_labels(self, desired: Mapping[str, str]) -> None:
        """Add labels; others are kept."""

        def request(instance: Any) -> dict[str, Any]:
            labels = {**instance.labels, **desired}
            body = {"label_fingerprint": instance.label_fingerprint, "labels": labels}
            return {"instances_set_labels_request_resource": body}

        await self._modify("set_labels_unary", request)

    async def update_tags(self, desired: list[str]) -> None:
        """Add network tags; others are kept."""

        def request(instance: Any) -> dict[str, Any]:
            items = [*dict.fromkeys([*instance.tags.items, *desired])]
            return {"tags_resource": {"fingerprint": instance.tags.fingerprint, "items": items}}

        await self._modify("set_tags_unary", request)

    async def _modify(self, method: str, request: Callable[[Any], dict[str, Any]]) -> None:
        """Read, modify, write with the fingerprint; retried on conflict."""
        for remaining in range(MAX_ATTEMPTS - 1, -1, -1):
            instance = await self.get()
            if instance is None:
                raise NotFound(
                    f"{self.noun.capitalize()} not found",
                    f"{self.noun} {self.name} was deleted in the meantime",
                    hint="Recreate what is missing:\n    tpuctl up",
                )
            try:
                operation = await self.call(method, **request(instance))
            except Conflict:
                if not remaining:
                    raise
                await self.resource.cloud.clock.sleep(0.2)
                continue
            await self.wait_for(operation)
            return

    async def delete(self, report: Report, state: str = "STOPPING") -> None:
        """Delete it, if it exists; `state` is reported."""
        report(state, None)
        operation = await self.resource.find("instances", "delete_unary", **self.where)
        if operation is None:
            return
        await self.resource.confirm_deletion(
            self.wait_for(operation), self.get, f"instance {self.name}", SECONDS
        )


def network_interface(stack: Stack, network: str) -> dict[str, Any]:
    """The interface of the stack's machines in the named network."""
    interface: dict[str, Any] = {}
    if not stack.has_shared_network:  # of a host project, the subnetwork alone is accepted
        interface["network"] = stack.network_path(network)
    if stack.subnetwork_path is not None:
        interface["subnetwork"] = stack.subnetwork_path
    if stack.file.network.ssh == "external":
        interface["access_configs"] = [{"name": "External NAT", "type_": "ONE_TO_ONE_NAT"}]
    return interface


def boot_disk(stack: Stack, image: str, size_gb: int, disk_type: str) -> dict[str, Any]:
    """The boot disk of a machine, deleted with it. `disk_type` is a path, or a template's name."""
    return {
        **disk_encryption(stack),
        "boot": True,
        "auto_delete": True,
        "initialize_params": {
            "source_image": image,
            "disk_size_gb": size_gb,
            "disk_type": disk_type,
            "labels": stack.new_labels,
        },
    }


def shielded(secure_boot: bool) -> dict[str, Any]:
    """The field of a Shielded VM; others get Compute Engine's defaults."""
    names = ("enable_secure_boot", "enable_vtpm", "enable_integrity_monitoring")
    return {"shielded_instance_config": dict.fromkeys(names, True)} if secure_boot else {}


def boot_differences(observed: Any, secure_boot: bool) -> Iterator[tuple[str, str, str]]:
    """Of a machine, as (field, actual, desired): Secure Boot that it should have, and has not."""
    if secure_boot and not observed.shielded_instance_config.enable_secure_boot:
        yield "Secure Boot", "off", "on"


def metadata_values(observed: Any) -> dict[str, str]:
    """The metadata of an instance, or of a template's properties."""
    return {item.key: item.value for item in observed.metadata.items}


def metadata_items(metadata: Mapping[str, str]) -> list[dict[str, str]]:
    """Metadata as Compute Engine writes it."""
    return [{"key": key, "value": value} for key, value in metadata.items()]
