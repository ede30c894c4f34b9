"""Instances: virtual machines such as the controllers of TPU nodes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tpuctl.emulator.machine import MachineError
from tpuctl.emulator.policies import ACCOUNTS
from tpuctl.emulator.services.compute_bulk_insert import Batch, BulkInsertion, batch_of
from tpuctl.emulator.services.compute_collection import Row, asked_once, fingerprint, name_must_fit
from tpuctl.emulator.services.compute_drafts import Draft, draft
from tpuctl.emulator.services.compute_errors import (
    not_ready,
)
from tpuctl.emulator.services.compute_instance_settings import InstanceSettings
from tpuctl.emulator.services.compute_machines import PORT_KEY
from tpuctl.emulator.services.compute_places import region_of
from tpuctl.emulator.services.compute_quota import disk_needs, instance_needs
from tpuctl.emulator.services.compute_wire import LINK, as_row, message_of
from tpuctl.emulator.status import ApiError, invalid, missing
from tpuctl.emulator.world import Caller

__all__ = ["Instances"]

_MOST_OUTPUT = 2**20  # "the most recent 1 MB", says the method's description
_PLATFORMS = {
    "n1": "Intel Haswell",
    "n2": "Intel Cascade Lake",
    "n2d": "AMD Rome",
    "e2": "Intel Broadwell",
    "c2": "Intel Cascade Lake",
}
_SETTLED = ("RUNNING", "TERMINATED")


class Instances(InstanceSettings):
    """Instances of a zone. Each has a real machine behind it."""

    def __init__(self, service: Any) -> None:
        super().__init__(service)
        bulk = BulkInsertion(self)
        self.effects = {**self.effects, f"{self.kind}.bulkInsert": bulk.effect}

    def show(self, name: str, row: Row) -> Row:
        shown = {
            **super().show(name, row),
            "machineType": LINK + row["machineType"],
            "labelFingerprint": fingerprint(row["labels"]),
            "fingerprint": fingerprint(row),
            "tags": {**row["tags"], "fingerprint": fingerprint(row["tags"])},
            "metadata": {
                "kind": "compute#metadata",
                "fingerprint": fingerprint(row["metadata"]["items"]),
                "items": row["metadata"]["items"],
            },
            "cpuPlatform": _platform(row),
            "startRestricted": False,
            "confidentialInstanceConfig": {"enableConfidentialCompute": False},
            "shieldedInstanceIntegrityPolicy": {"updateAutoLearnPolicy": True},
            "networkInterfaces": [_interface(row, one) for one in row["networkInterfaces"]],
            "disks": [
                {**one, "source": LINK + one["source"]} if "source" in one else one
                for one in row["disks"]
            ],
        }
        del shown["address"]
        shown.pop("deleting", None)
        return shown

    def users_of_network(self, name: str) -> list[str]:
        """Instances on a network or subnetwork, by their full names."""
        return [
            instance
            for instance, row in self.items(f"projects/{name.split('/')[1]}/")
            if any(name in (one["network"], one["subnetwork"]) for one in row["networkInterfaces"])
        ]

    async def insert(self, request: Any, caller: Caller) -> Any:
        base = self.base_of(request)
        again = self.service.begun_before(base, request.request_id)
        if again is not None:
            return again
        if request.source_instance_template or request.source_machine_image:
            raise invalid("Templates and machine images are not imitated.", reason="invalid")
        asked = as_row(request.instance_resource)
        name_must_fit(asked.get("name", ""))
        name = f"{base}/{asked['name']}"
        self.refuse_second(name)
        made = draft(self.service, name, asked)
        refusal = self._refusal([made], name)
        if refusal is not None:
            return self.begin_on(
                "refused", name, caller, {"refusal": refusal}, request.request_id, verb="insert"
            )
        (endpoint,) = await self._reserve([name])
        again = self.service.begun_before(base, request.request_id)
        if again is not None:  # the same call may have come in between, or another
            return again
        self.refuse_second(name)
        return self._begin_insertion(name, made, endpoint, caller, {}, request.request_id)

    async def bulk_insert(self, request: Any, caller: Caller) -> Any:
        base = self.base_of(request)
        again = self.service.begun_before(base, request.request_id)
        if again is not None:
            return again
        batch = batch_of(request, [name.rpartition("/")[2] for name in self.names(f"{base}/")])
        made: dict[str, Draft] = {}
        for own in batch.names:
            name = f"{base}/{own}"
            self.refuse_second(name)
            made[name] = draft(self.service, name, {**batch.properties, "name": own})
        group = {"group": BulkInsertion.new_group()}
        refusal, made = self._largest_part(made, batch)
        if refusal is not None:
            arguments = {**group, "refusal": refusal}
            request_id = request.request_id
            return self.begin_on("refused", base, caller, arguments, request_id, verb="bulkInsert")
        endpoints = await self._reserve(list(made))
        again = self.service.begun_before(base, request.request_id)
        if again is not None:
            return again
        for name in made:
            self.refuse_second(name)
        with self.store.transaction():
            members = [
                self._begin_insertion(name, made[name], endpoint, caller, group)
                for name, endpoint in zip(made, endpoints, strict=True)
            ]
            scope = base.rpartition("/")[0]
            arguments = {
                **group,
                "members": [f"{scope}/operations/{operation.name}" for operation in members],
                "least": batch.least,
            }
            return self.begin_on("bulkInsert", base, caller, arguments, request.request_id)

    def _largest_part(self, made: dict[str, Draft], batch: Batch) -> tuple[Any, dict[str, Draft]]:
        """As many as quota lets come, and why fewer than asked for are not enough, if so."""
        name = next(iter(made))
        for count in range(len(made), batch.least - 1, -1):
            part = dict(list(made.items())[:count])
            refusal = self._refusal(list(part.values()), name)
            if refusal is None or refusal["code"] != "QUOTA_EXCEEDED":
                return refusal, part
        return refusal, {}

    def _begin_insertion(
        self,
        name: str,
        made: Draft,
        endpoint: Any,
        caller: Caller,
        arguments: Row,
        request_id: str = "",
    ) -> Any:
        row = self.born({**made.row, "address": endpoint.address})
        if endpoint.ssh_port != 22:
            row["metadata"]["items"].append({"key": PORT_KEY, "value": str(endpoint.ssh_port)})
        with self.store.transaction():
            self.save(name, row)
            for disk_name, disk in made.disks.items():
                disks = self.service.disks
                self.store.put_json(disks.kind, disk_name, disks.born(disk))
            arguments = {**arguments, "disks": list(made.disks), "target_id": row["id"]}
            return self.begin_on("insert", name, caller, arguments, request_id)

    async def _reserve(self, names: list[str]) -> Any:
        try:
            return await self.service.world.host.reserve(names)
        except MachineError as error:
            raise ApiError("RESOURCE_EXHAUSTED", str(error)) from error

    def _refusal(self, drafts: list[Draft], name: str) -> Any | None:
        """The error with which the operation must end. `name` is that of one of them."""
        project, zone = name.split("/")[1], name.split("/")[3]
        made = drafts[0]
        for account in made.row["serviceAccounts"]:
            owner, _, domain = account["email"].partition("@")[2].partition(".")
            full = f"projects/{owner}/serviceAccounts/{account['email']}"
            if domain == "iam.gserviceaccount.com" and self.store.get(ACCOUNTS, full) is None:
                return {
                    "code": "EXTERNAL_RESOURCE_NOT_FOUND",
                    "message": f"The resource '{account['email']}' of type 'serviceAccount' was "
                    "not found.",
                    "http": 404,
                }
        needs: Counter[str] = Counter()
        for each in drafts:
            needs.update(instance_needs(each.row))
            for disk in each.disks.values():
                needs.update(disk_needs(disk))
        refusal = self.service.quota.refusal(project, region_of(zone), needs)
        if refusal is not None:
            return refusal
        kind = made.row["machineType"].rpartition("/")[2]
        fault = self.service.world.faults.take("stockout", project=project, zone=zone, type=kind)
        if fault is None:
            return None
        return _stockout(project, zone, kind, str(fault.get("text") or ""))

    @asked_once
    async def delete(self, name: str, request: Any, caller: Caller) -> Any:
        row = self.must(name)
        if row.get("deleting"):
            raise not_ready(name)
        if row.get("deletionProtection"):
            text = "Resource cannot be deleted if it's protected against deletion."
            raise invalid(f"Invalid resource usage: '{text}'.", reason="invalidResourceUsage")
        with self.store.transaction():
            self.change(name, status="STOPPING", deleting=True)
            self.abort_pending(name)
            return self.begin_on("delete", name, caller, {}, request.request_id)

    @asked_once
    async def stop(self, name: str, request: Any, caller: Caller) -> Any:
        return self._turn(name, "stop", "RUNNING", "STOPPING", request, caller)

    @asked_once
    async def reset(self, name: str, request: Any, caller: Caller) -> Any:
        """Switched off without a word to its programs, and on again; it is RUNNING throughout."""
        if self.must(name)["status"] != "RUNNING":
            raise not_ready(name)
        return self.begin_on("reset", name, caller, {}, request.request_id)

    @asked_once
    async def start(self, name: str, request: Any, caller: Caller) -> Any:
        return self._turn(name, "start", "TERMINATED", "STAGING", request, caller)

    def _turn(
        self, name: str, verb: str, before: str, during: str, request: Any, caller: Caller
    ) -> Any:
        """Stop or start. Of what is in the state already, nothing becomes, and it is no error."""
        row = self.must(name)
        if row["status"] not in _SETTLED:
            raise not_ready(name)
        if row["status"] != before:
            return self.begin_on("nothing", name, caller, {}, request.request_id, verb=verb)
        with self.store.transaction():
            self.change(name, status=during)
            return self.begin_on(verb, name, caller, {}, request.request_id)

    def preempt(self, name: str, notice: float) -> None:
        """Take a running machine away as Google does with spot ones; its programs get notice."""
        row = self.must(name)
        if row["status"] != "RUNNING":
            raise not_ready(name)
        with self.store.transaction():
            self.change(name, status="STOPPING")
            verb = "compute.instances.preempted"
            system = Caller("system")
            self.begin_on("preempted", name, system, {"notice": notice}, verb=verb)

    async def get_guest_attributes(self, request: Any, caller: Caller) -> Any:
        """What programs on the machine have written, where its metadata allows them to."""
        name = self.name_of(request)
        row = self.must(name)
        path = request.query_path or request.variable_key
        space, _, key = path.partition("/")
        known = self.service.world.host.guest_attributes(name) if self._tells(name, row) else {}
        items = [
            {"namespace": one, "key": name_, "value": value}
            for one, values in known.items()
            for name_, value in values.items()
            if space in ("", one) and key in ("", name_)
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
        """What its startup script has said, on the first port; a system's own words are none."""
        name = self.name_of(request)
        self.must(name)
        text = self.service.world.host.console(name) if request.port in (0, 1) else b""
        start = min(request.start, len(text)) if request.start >= 0 else 0
        start = max(start, len(text) - _MOST_OUTPUT)
        answer = {
            "kind": "compute#serialPortOutput",
            "contents": text[start:].decode("utf-8", "replace"),
            "start": str(start),
            "next": str(len(text)),
            "selfLink": f"{LINK}{name}/serialPort",
        }
        return message_of("SerialPortOutput", answer)

    def _tells(self, name: str, row: Row) -> bool:
        """Metadata of the instance decides, else that of the project."""
        for items in (row["metadata"]["items"], self.service.projects.items(name.split("/")[1])):
            for item in items:
                if item["key"] == "enable-guest-attributes":
                    return bool(item["value"].lower() == "true")
        return False


def _platform(row: Row) -> str:
    """That of the family (cloud.google.com/compute/docs/cpu-platforms); unknown when stopped."""
    family = row["machineType"].rpartition("/")[2].partition("-")[0]
    known = _PLATFORMS.get(family, "Unknown CPU Platform")
    return known if row["status"] == "RUNNING" else "Unknown CPU Platform"


def _interface(row: Row, one: Row) -> Row:
    """An interface with its addresses; the external one is there while the machine is."""
    outside = {} if row["status"] == "TERMINATED" else {"natIP": row["address"]}
    return {
        **one,
        "kind": "compute#networkInterface",
        "network": LINK + one["network"],
        "subnetwork": LINK + one["subnetwork"],
        "networkIP": row["address"],
        "fingerprint": fingerprint(one),
        "accessConfigs": [{**access, **outside} for access in one["accessConfigs"]],
    }


def _stockout(project: str, zone: str, kind: str, text: str) -> Any:
    """As in CCExtractor/sample-platform#901 (2024) and GoogleCloudPlatform/ai-on-gke#849."""
    usual = (
        f"The zone 'projects/{project}/zones/{zone}' does not have enough resources available to "
        "fulfill the request.  Try a different zone, or try again later."
    )
    localized = (
        f"A {kind} VM instance is currently unavailable in the {zone} zone. Alternatively, you can "
        "try your request again with a different VM hardware configuration or at a later time. "
        "For more information, see the troubleshooting documentation."
    )
    link = "https://cloud.google.com/compute/docs/resource-error"
    facts = {"vmType": kind, "attachment": "", "zone": zone, "zonesAvailable": ""}
    info = {
        "reason": "resource_availability",
        "domain": "compute.googleapis.com",
        "metadatas": facts,
    }
    return {
        "code": "ZONE_RESOURCE_POOL_EXHAUSTED",
        "message": text or usual,
        "http": 503,
        "more": [
            {"help": {"links": [{"description": "Troubleshooting documentation", "url": link}]}},
            {"localizedMessage": {"locale": "en-US", "message": localized}},
            {"errorInfo": info},
        ],
    }
