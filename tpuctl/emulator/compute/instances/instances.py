"""Instances: virtual machines such as controllers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from tpuctl.emulator.compute.core.collection import Row, check_name, idempotent
from tpuctl.emulator.compute.core.errors import not_ready
from tpuctl.emulator.compute.core.fingerprint import fingerprint
from tpuctl.emulator.compute.core.messages import LINK, as_row, message_of
from tpuctl.emulator.compute.disks.encryption_keys import check_decryption
from tpuctl.emulator.compute.instances.bulk_insert import BulkInsertion, batch_of
from tpuctl.emulator.compute.instances.disk_keys import check_keys
from tpuctl.emulator.compute.instances.instance_lifecycle import PORT_KEY
from tpuctl.emulator.compute.instances.instance_settings import InstanceSettings
from tpuctl.emulator.compute.instances.instance_spec import Draft, draft
from tpuctl.emulator.compute.instances.instance_templates import (
    find_template,
    instance_body,
    template_name,
)
from tpuctl.emulator.compute.offerings.scheduling import live_migration
from tpuctl.emulator.faults.weather import Occupant
from tpuctl.emulator.iam.policies import ACCOUNTS
from tpuctl.emulator.machines.interface import MachineError
from tpuctl.emulator.state.errors import ApiError, invalid, missing, unsupported_field
from tpuctl.emulator.state.firewall_rules import Identity
from tpuctl.emulator.state.operations import Effect
from tpuctl.emulator.state.pacific_time import pacific_text
from tpuctl.emulator.wire.machine_service import NetworkInterface
from tpuctl.emulator.wire.registry import Caller

_MAX_SERIAL_OUTPUT_BYTES = 2**20  # "the most recent 1 MB", says the method's description
_CPU_PLATFORMS = {
    "n1": "Intel Haswell",
    "n2": "Intel Cascade Lake",
    "n2d": "AMD Rome",
    "e2": "Intel Broadwell",
    "c2": "Intel Cascade Lake",
}
# Metadata values of a maintenance event, with and without live migration: docs.cloud.google.com/
# compute/docs/metadata/getting-live-migration-notice
_MAINTENANCE_EVENTS = {
    "MIGRATE": "MIGRATE_ON_HOST_MAINTENANCE",
    "TERMINATE": "TERMINATE_ON_HOST_MAINTENANCE",
}
_STABLE_STATES = ("RUNNING", "TERMINATED")


class Instances(InstanceSettings):
    """Instances of a zone. Each is backed by a local machine."""

    links = ("machineType",)
    internal = ("address", "deleting", "pool", "reservation", "run_end", "slice")

    def verbs(self) -> dict[str, Effect]:
        bulk_insert = Effect(lambda arguments: None, BulkInsertion(self).wait)
        return {**super().verbs(), "bulkInsert": bulk_insert}

    def show(self, name: str, row: Row) -> Row:
        return {
            **super().show(name, row),
            "fingerprint": fingerprint(row),
            "tags": {**row["tags"], "fingerprint": fingerprint(row["tags"]["items"])},
            "metadata": {
                "kind": "compute#metadata",
                "fingerprint": fingerprint(row["metadata"]["items"]),
                "items": row["metadata"]["items"],
            },
            "cpuPlatform": _cpu_platform(row),
            "startRestricted": False,
            "satisfiesPzi": False,
            "resourceStatus": {"scheduling": _scheduling_status(row)},
            "shieldedInstanceIntegrityPolicy": {"updateAutoLearnPolicy": True},
            "networkInterfaces": [
                _interface(row, interface) for interface in row["networkInterfaces"]
            ],
            "disks": [
                {**disk, "source": LINK + disk["source"]} if "source" in disk else disk
                for disk in row["disks"]
            ],
        }

    def users_of_network(self, name: str) -> list[str]:
        """Instances on a network or subnetwork, by full name."""
        return [
            instance
            for instance, row in self.items(f"projects/{name.split('/')[1]}/")
            if any(
                name in (interface["network"], interface["subnetwork"])
                for interface in row["networkInterfaces"]
            )
        ]

    def users_of_disks(self, project: str) -> dict[str, list[str]]:
        """Instances of a project by attached disk."""
        users: dict[str, list[str]] = {}
        for name, instance in self.items(f"projects/{project}/"):
            for disk in instance.get("disks", ()):
                if "source" in disk:
                    users.setdefault(disk["source"], []).append(name)
        return users

    def occupants(self) -> Iterator[Occupant]:
        """All but those that wait for room, or have given it back."""
        for name, row in self.items("projects/"):
            if row["status"] not in ("PENDING", "STOPPING", "TERMINATED"):
                yield Occupant(
                    name,
                    str(row["id"]),
                    row["machineType"].rpartition("/")[2],
                    row["status"] == "RUNNING",
                    row["scheduling"]["preemptible"],
                )

    def tunnel_target(self, name: str) -> str | None:
        """The name, if the instance is running."""
        return name if self.is_running(name) else None

    def is_running(self, name: str) -> bool:
        return (self.find(name) or {}).get("status") == "RUNNING"

    def interface(self, name: str) -> NetworkInterface | None:
        row = self.find(name)
        if row is None:
            return None
        interface = row["networkInterfaces"][0]
        account = row["serviceAccounts"][0]["email"] if row["serviceAccounts"] else ""
        return NetworkInterface(
            machine=name,
            address=row["address"],
            network=interface["network"],
            subnetwork=interface["subnetwork"],
            identity=Identity(frozenset(row["tags"]["items"]), account),
            has_external_address=bool(interface["accessConfigs"]),
        )

    @idempotent
    async def insert(self, base: str, request: Any, caller: Caller) -> Any:
        if request.source_machine_image:
            raise unsupported_field("sourceMachineImage")
        body = as_row(request.instance_resource)
        if reference := request.source_instance_template:
            zone, field = base.rpartition("/")[0], "sourceInstanceTemplate"
            template = find_template(
                self.context, template_name(self.context, zone, reference, field)
            )
            assert template is not None, "its name has just been looked up"
            body = {**instance_body(template["properties"], request.zone), **body}
        check_name(body.get("name", ""))
        name = f"{base}/{body['name']}"
        self.require_unused_name(name)
        instance = draft(self.sources, name, body)
        refusal = self._refusal({name: instance})
        if refusal is not None:
            return self.begin(
                "refused",
                name,
                caller,
                {"refusal": refusal},
                request.request_id,
                shown_verb="insert",
            )
        (endpoint,) = await self.reserve([name])
        existing = self.context.operation_of_request(base, request.request_id)
        if existing is not None:  # a concurrent request may have begun it meanwhile
            return existing
        self.require_unused_name(name)
        return self.begin_insertion(name, instance, endpoint, caller, {}, request.request_id)

    @idempotent
    async def bulk_insert(self, base: str, request: Any, caller: Caller) -> Any:
        existing_ids = [name.rpartition("/")[2] for name in self.names(f"{base}/")]
        batch = batch_of(self.context, base.rpartition("/")[0], request, existing_ids)
        drafts: dict[str, Draft] = {}
        for instance_id in batch.names:
            name = f"{base}/{instance_id}"
            self.require_unused_name(name)
            drafts[name] = draft(self.sources, name, {**batch.properties, "name": instance_id})
        group = {"group": BulkInsertion.new_group()}
        refusal, drafts = self.largest_allowed(drafts, batch.min_count)
        if len(drafts) < batch.min_count:
            arguments = {**group, "refusal": refusal}
            request_id = request.request_id
            return self.begin(
                "refused", base, caller, arguments, request_id, shown_verb="bulkInsert"
            )
        endpoints = await self.reserve(list(drafts))
        existing = self.context.operation_of_request(base, request.request_id)
        if existing is not None:
            return existing
        for name in drafts:
            self.require_unused_name(name)
        with self.store.transaction():
            members = [
                self.begin_insertion(name, drafts[name], endpoint, caller, group)
                for name, endpoint in zip(drafts, endpoints, strict=True)
            ]
            scope = base.rpartition("/")[0]
            arguments = {
                **group,
                "operations": [f"{scope}/operations/{operation.name}" for operation in members],
                "min_count": batch.min_count,
            }
            return self.begin("bulkInsert", base, caller, arguments, request.request_id)

    def largest_allowed(
        self, drafts: dict[str, Draft], min_count: int
    ) -> tuple[Any, dict[str, Draft]]:
        """As many as quota allows, none if that is fewer than the minimum, and the error if that
        is not all."""
        error = None
        for count in range(len(drafts), min_count - 1, -1):
            part = dict(list(drafts.items())[:count])
            refusal = self._refusal(part)
            if refusal is None:
                return error, part
            error = error or refusal
            if refusal["code"] != "QUOTA_EXCEEDED":
                break
        return error, {}

    def begin_insertion(
        self,
        name: str,
        instance: Draft,
        endpoint: Any,
        caller: Caller,
        arguments: Row,
        request_id: str = "",
    ) -> Any:
        row = self.with_identity({**instance.row, "address": endpoint.address})
        if instance.wait_seconds:
            row["status"] = "PENDING"
            arguments = {**arguments, "wait_until": time.time() + instance.wait_seconds}
        if endpoint.ssh_port != 22:
            row["metadata"]["items"].append({"key": PORT_KEY, "value": str(endpoint.ssh_port)})
        with self.store.transaction():
            for disk_name in instance.forced_disks:
                self.detach_from_users(disk_name)
            self.save(name, row)
            for disk_name, disk in instance.disks.items():
                disks = self._disks
                self.store.put_json(disks.kind, disk_name, disks.with_identity(disk))
            self.stamp_disks(row["disks"], "lastAttachTimestamp")
            arguments = {**arguments, "disks": list(instance.disks), "target_id": row["id"]}
            return self.begin("insert", name, caller, arguments, request_id)

    async def reserve(self, names: list[str]) -> Any:
        try:
            return await self.context.registry.host.reserve(names)
        except MachineError as error:
            raise ApiError("RESOURCE_EXHAUSTED", str(error)) from error

    def _refusal(self, drafts: dict[str, Draft]) -> Any | None:
        """The error that the operation must fail with: of instances of one kind, by name."""
        name, first = next(iter(drafts.items()))
        for account in first.row["serviceAccounts"]:
            owner, _, domain = account["email"].partition("@")[2].partition(".")
            full = f"projects/{owner}/serviceAccounts/{account['email']}"
            if domain == "iam.gserviceaccount.com" and self.store.get(ACCOUNTS, full) is None:
                return {
                    "code": "EXTERNAL_RESOURCE_NOT_FOUND",
                    "message": f"The resource '{account['email']}' of type 'serviceAccount' was "
                    "not found.",
                    "http": 404,
                }
        refusal = live_migration(first.row)
        if refusal is not None or first.wait_seconds:
            return refusal
        return self.capacity.refusal(name, list(drafts.values()))

    @idempotent
    async def delete(self, name: str, request: Any, caller: Caller) -> Any:
        row = self.require(name)
        if row.get("deleting"):
            raise not_ready(name)
        if row.get("deletionProtection"):
            text = "Resource cannot be deleted if it's protected against deletion."
            raise invalid(f"Invalid resource usage: '{text}'.", reason="invalidResourceUsage")
        return self.begin_deletion(name, caller, request.request_id)

    def begin_deletion(self, name: str, caller: Caller, request_id: str = "") -> Any:
        with self.store.transaction():
            self.change(name, status="STOPPING", deleting=True)
            self.abort_pending(name)
            return self.begin("delete", name, caller, {}, request_id)

    @idempotent
    async def stop(self, name: str, request: Any, caller: Caller) -> Any:
        return self._change_state(name, "stop", "RUNNING", "STOPPING", request, caller)

    @idempotent
    async def reset(self, name: str, request: Any, caller: Caller) -> Any:
        """Power-cycle without notice to the programs; the status stays RUNNING."""
        if self.require(name)["status"] != "RUNNING":
            raise not_ready(name)
        return self.begin("reset", name, caller, {}, request.request_id)

    @idempotent
    async def start(self, name: str, request: Any, caller: Caller) -> Any:
        disks = self.require(name)["disks"]
        if not any(disk["boot"] for disk in disks):
            raise invalid("The instance has no boot disk.")  # a guess
        for disk in disks:
            check_decryption(self.context, name, disk.get("diskEncryptionKey", {}))
        return self._change_state(name, "start", "TERMINATED", "STAGING", request, caller)

    @idempotent
    async def start_with_encryption_key(self, name: str, request: Any, caller: Caller) -> Any:
        """With the keys of the disks that customers' own keys protect."""
        body = as_row(request.instances_start_with_encryption_key_request_resource)
        check_keys(name, self.require(name), body)
        shown_verb = "startWithEncryptionKey"
        return self._change_state(
            name, "start", "TERMINATED", "STAGING", request, caller, shown_verb
        )

    def _change_state(
        self,
        name: str,
        verb: str,
        before: str,
        during: str,
        request: Any,
        caller: Caller,
        shown_verb: str = "",
    ) -> Any:
        """Stop or start. In the target state already, the operation does nothing."""
        shown_verb = shown_verb or verb
        row = self.require(name)
        if row["status"] not in _STABLE_STATES:
            raise not_ready(name)
        if row["status"] != before:
            return self.begin(
                "nothing", name, caller, {}, request.request_id, shown_verb=shown_verb
            )
        with self.store.transaction():
            self.change(name, status=during)
            return self.begin(verb, name, caller, {}, request.request_id, shown_verb=shown_verb)

    def preempt(self, name: str, notice: float) -> None:
        """Preempt a running instance as Google preempts spot ones, with notice."""
        row = self.require(name)
        if row["status"] != "RUNNING":
            raise not_ready(name)
        with self.store.transaction():
            self.change(name, status="STOPPING")
            verb = "compute.instances.preempted"
            system = Caller("system")
            self.begin("preempted", name, system, {"notice": notice}, shown_verb=verb)

    async def maintain(self, name: str) -> None:
        """Announce maintenance on a running machine and clear the event after a while."""
        row = self.find(name) or {}
        if row.get("status") != "RUNNING":
            raise ApiError("FAILED_PRECONDITION", f"{name} is not running.")
        policy = row.get("scheduling", {}).get("onHostMaintenance", "MIGRATE")
        registry = self.context.registry
        registry.host.set_event(name, "maintenance-event", _MAINTENANCE_EVENTS[policy])
        await asyncio.sleep(registry.pace.seconds("tpu.maintain"))
        registry.host.set_event(name, "maintenance-event", "NONE")

    async def get_guest_attributes(self, request: Any, caller: Caller) -> Any:
        """Attributes that programs on the machine wrote, if metadata enables them."""
        name = self.name_of(request)
        row = self.require(name)
        path = request.query_path or request.variable_key
        space, _, key = path.partition("/")
        attributes = (
            self.context.registry.host.guest_attributes(name)
            if self._allows_guest_attributes(name, row)
            else {}
        )
        items = [
            {"namespace": namespace, "key": name_, "value": value}
            for namespace, values in attributes.items()
            for name_, value in values.items()
            if space in ("", namespace) and key in ("", name_)
        ]
        if not items:
            raise missing(f"The resource '{path}' of type 'Guest Attribute' was not found.")
        answer: Row = {
            "kind": "compute#guestAttributes",
            "selfLink": f"{LINK}{name}/guestAttributes/{path}",
        }
        if request.query_path:
            answer |= {"queryPath": path, "queryValue": {"items": items}}
        else:
            answer |= {"variableKey": path, "variableValue": items[0]["value"]}
        return message_of("GuestAttributes", answer)

    async def get_serial_port_output(self, request: Any, caller: Caller) -> Any:
        """The startup script's output on port 1; there is no other console output."""
        name = self.name_of(request)
        self.require(name)
        text = self.context.registry.host.console(name) if request.port in (0, 1) else b""
        start = min(request.start, len(text)) if request.start >= 0 else 0
        start = max(start, len(text) - _MAX_SERIAL_OUTPUT_BYTES)
        answer = {
            "kind": "compute#serialPortOutput",
            "contents": text[start:].decode("utf-8", "replace"),
            "start": str(start),
            "next": str(len(text)),
            "selfLink": f"{LINK}{name}/serialPort",
        }
        return message_of("SerialPortOutput", answer)

    def _allows_guest_attributes(self, name: str, row: Row) -> bool:
        """From the instance's metadata, else the project's."""
        for items in (row["metadata"]["items"], self._projects.items(name.split("/")[1])):
            for item in items:
                if item["key"] == "enable-guest-attributes":
                    return bool(item["value"].lower() == "true")
        return False


def _scheduling_status(row: Row) -> Row:
    if row["status"] != "RUNNING" or "run_end" not in row:
        return {}
    return {"terminationTimestamp": pacific_text(row["run_end"])}


def _cpu_platform(row: Row) -> str:
    """By family (cloud.google.com/compute/docs/cpu-platforms); unknown while not running."""
    family = row["machineType"].rpartition("/")[2].partition("-")[0]
    platform = _CPU_PLATFORMS.get(family, "Unknown CPU Platform")
    return platform if row["status"] == "RUNNING" else "Unknown CPU Platform"


def _interface(row: Row, interface: Row) -> Row:
    """An interface with its addresses; the external one only while not terminated."""
    external = {} if row["status"] == "TERMINATED" else {"natIP": row["address"]}
    return {
        **interface,
        "kind": "compute#networkInterface",
        "network": LINK + interface["network"],
        "subnetwork": LINK + interface["subnetwork"],
        "networkIP": row["address"],
        "fingerprint": fingerprint(interface),
        "accessConfigs": [{**access, **external} for access in interface["accessConfigs"]],
    }
