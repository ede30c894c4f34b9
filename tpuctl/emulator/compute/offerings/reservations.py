"""Reservations and future reservations: capacity that instances may be bound to by name.

A calendar-mode request is approved at once; at its start time it creates a reservation, and at its
end time it deletes that (docs.cloud.google.com/compute/docs/instances/
future-reservations-calendar-mode-overview). Reservations consume no quota here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from tpuctl.emulator.compute.core.collection import Collection, Row
from tpuctl.emulator.compute.core.context import (
    INSTANCE_TEMPLATES,
    INSTANCES,
    REGION_INSTANCE_TEMPLATES,
    ComputeContext,
)
from tpuctl.emulator.compute.core.errors import bad_field, in_use, unknown_reference
from tpuctl.emulator.compute.core.messages import LINK
from tpuctl.emulator.compute.offerings.machine_types import MachineType, machine_type
from tpuctl.emulator.compute.offerings.scheduling import RESERVATION_BOUND
from tpuctl.emulator.state.errors import ApiError, invalid
from tpuctl.emulator.state.operations import Arguments, Effect
from tpuctl.emulator.state.resource_names import relative_name

_RESERVATIONS = "compute.reservations"
_KEY = "compute.googleapis.com/reservation-name"
_FIELD = "resource.reservationAffinity"
# Not a project's scope: no list contains these operations.
_INTERNAL_PARENT = "reservations"
# By generation, as `gcloud compute future-reservations create --tpu-version` sends them (SDK 528,
# future_reservations/util.py).
_FAMILIES: Mapping[str, str] = {
    "v5e": "VM_FAMILY_CLOUD_TPU_LITE_POD_SLICE_CT5LP",
    "v5p": "VM_FAMILY_CLOUD_TPU_POD_SLICE_CT5P",
    "v6e": "VM_FAMILY_CLOUD_TPU_LITE_POD_SLICE_CT6E",
}


def reservation_of(
    context: ComputeContext, name: str, body: Row, machine: MachineType, model: str
) -> Row:
    """The fields of an instance that say which reservation it uses; ApiError if it cannot.

    Texts: skypilot-org/skypilot#3327; kubernetes/autoscaler, gce/autoscaling_gce_client_test.go.
    """
    affinity = body.get("reservationAffinity", {})
    is_specific = affinity.get("consumeReservationType") == "SPECIFIC_RESERVATION"
    if not is_specific:
        if model == RESERVATION_BOUND:
            reason = f"The provisioning model {RESERVATION_BOUND} requires a specific reservation."
            raise bad_field(_FIELD, json.dumps(affinity), reason)
        return {"reservationAffinity": affinity} if affinity else {}
    values = affinity.get("values", [])
    requested = values[0] if len(values) == 1 and affinity.get("key") == _KEY else ""
    full = _full_name(name, requested)
    row = context.find(_RESERVATIONS, full)
    if row is None or not _is_shared_with(row, full, name.split("/")[1]):
        raise _unusable(affinity, f"Specified reservations [{requested}] do not exist.")
    if not row.get("specificReservationRequired"):
        raise _unusable(
            affinity,
            f"Specified reservations [{requested}] can not be targeted as "
            "specificReservationRequired is not set",
        )
    if not _has_room(context, full, row, machine):
        raise _unusable(affinity, "No available resources in specified reservations.")
    return {"reservationAffinity": affinity, "reservation": full}


def _unusable(affinity: Row, reason: str) -> ApiError:
    text = json.dumps(affinity, indent=2).replace("\n", "")
    return bad_field(_FIELD, text if len(text) <= 100 else f"{text[:100]}...", reason)


def _full_name(instance: str, requested: str) -> str:
    """In the instance's zone: `NAME`, or `projects/P/reservations/NAME` of another project."""
    _, project, _, zone, *_ = instance.split("/")
    parts = requested.split("/")
    if parts[0] == "projects" and len(parts) >= 4:
        project = parts[1]
        return f"projects/{project}/zones/{zone}/reservations/{parts[3]}"
    return f"projects/{project}/zones/{zone}/reservations/{requested}"


def _is_shared_with(row: Row, full_name: str, project: str) -> bool:
    settings = row.get("shareSettings", {})
    is_shared = settings.get("shareType") == "SPECIFIC_PROJECTS"
    return full_name.split("/")[1] == project or (
        is_shared and project in settings.get("projectMap", {})
    )


def _has_room(context: ComputeContext, name: str, row: Row, machine: MachineType) -> bool:
    """Whether one more machine of this type fits in."""
    used = _users(context, name)
    if "aggregateReservation" in row:
        chips = machine.tpu.accelerator.chips if machine.tpu is not None else 0
        generation = machine.tpu.accelerator.generation if machine.tpu is not None else ""
        family = row["aggregateReservation"].get("vmFamily")
        total = _reserved_chips(row)
        return _FAMILIES.get(generation) == family and _used_chips(used) + chips <= total
    specific = row["specificReservation"]
    kind = specific["instanceProperties"]["machineType"]
    return bool(kind == machine.name and len(used) < int(specific["count"]))


def _users(context: ComputeContext, name: str) -> list[Row]:
    """The instances that use a reservation."""
    zone = name.split("/")[3]
    return [
        row
        for instance, row in context.items(INSTANCES, "projects/")
        if row.get("reservation") == name
        and instance.split("/")[3] == zone
        and row["status"] != "TERMINATED"
    ]


def _reserved_chips(row: Row) -> int:
    resources = row["aggregateReservation"].get("reservedResources", [])
    return sum(
        int(resource.get("accelerator", {}).get("acceleratorCount", 0)) for resource in resources
    )


def _used_chips(users: list[Row]) -> int:
    shapes = (machine_type(row["machineType"].rpartition("/")[2]) for row in users)
    return sum(kind.tpu.accelerator.chips for kind in shapes if kind is not None and kind.tpu)


class Reservations(Collection):
    """Reservations of a zone, of machines of one type or of chips."""

    kind, message, plural, field = _RESERVATIONS, "Reservation", "reservations", "reservation"
    scope, links = "zones", ("commitment",)

    def show(self, name: str, row: Row) -> Row:
        users = _users(self.context, name)
        resource = super().show(name, row)
        if "specificReservation" in row:
            used = {
                "inUseCount": str(len(users)),
                "assuredCount": row["specificReservation"]["count"],
            }
            resource["specificReservation"] = {**row["specificReservation"], **used}
        else:
            chips = {"accelerator": {"acceleratorCount": _used_chips(users)}}
            resource["aggregateReservation"] = {
                **row["aggregateReservation"],
                "inUseResources": [chips],
            }
        return resource

    def complete(self, name: str, row: Row) -> Row:
        zone = name.split("/")[3]
        if reference := row.get("specificReservation", {}).get("sourceInstanceTemplate"):
            row = {**row, "specificReservation": self._with_template(row, reference)}
        if "aggregateReservation" not in row:
            _check_machines(
                row.get("specificReservation", {}), "count", "specificReservation", zone
            )
        return {
            "specificReservationRequired": False,
            "shareSettings": {"shareType": "LOCAL"},
            **row,
            "status": "READY",
        }

    def _with_template(self, row: Row, reference: str) -> Row:
        """The machines of a reservation, as a template describes them."""
        field, specific = "resource.specificReservation", row["specificReservation"]
        if "instanceProperties" in specific:  # from the field's description
            reason = "It must be excluded if a source instance template is specified."
            raise bad_field(f"{field}.instanceProperties", "", reason)
        template = relative_name(reference)
        kind = INSTANCE_TEMPLATES if "/global/" in template else REGION_INSTANCE_TEMPLATES
        source = self.context.find(kind, template)
        if source is None:
            field = f"{field}.sourceInstanceTemplate"
            raise unknown_reference(field, reference, "instanceTemplate")
        fields = ("machineType", "minCpuPlatform")
        properties = source["properties"]
        return {
            **specific,
            "sourceInstanceTemplate": LINK + template,
            "instanceProperties": {key: properties[key] for key in fields if key in properties},
        }

    def check_deletable(self, name: str) -> None:
        for user, row in self.context.items(INSTANCES, "projects/"):
            if row.get("reservation") == name and row["status"] != "TERMINATED":
                raise in_use("reservation", name, user)


class FutureReservations(Collection):
    """Requests for capacity in a time window."""

    kind, message, plural = "compute.futureReservations", "FutureReservation", "futureReservations"
    field, scope = "future_reservation", "zones"
    list_endings = ("sListResponse", "sAggregatedListResponse")

    def __init__(self, context: ComputeContext, reservations: Reservations) -> None:
        super().__init__(context)
        self._reservations = reservations

    def verbs(self) -> dict[str, Effect]:
        return {
            **super().verbs(),
            "begin": Effect(self._create_reservation),
            "end": Effect(self._delete_reservation),
        }

    def complete(self, name: str, row: Row) -> Row:
        zone = name.split("/")[3]
        if "aggregateReservation" not in row:
            sku = row.get("specificSkuProperties", {})
            _check_machines(sku, "totalCount", "specificSkuProperties", zone)
        start, end = _window(row)
        if end <= max(start, time.time()):
            raise bad_field("resource.timeWindow", "", "The window must end in the future.")
        return {
            "reservationMode": "DEFAULT",
            "planningStatus": "DRAFT",
            "reservationName": row["name"],
            "specificReservationRequired": True,
            **row,
            "status": {"procurementStatus": "DRAFTING"},
        }

    def finish_insert(self, arguments: Arguments) -> None:
        """Whether Google approves a request in default mode is up to people: it stays pending."""
        row = arguments["row"]
        status = "DRAFTING"
        if row["planningStatus"] == "SUBMITTED":
            is_calendar = row["reservationMode"] == "CALENDAR"
            status = "APPROVED" if is_calendar else "PENDING_APPROVAL"
        row = {**row, "status": {"procurementStatus": status}}
        super().finish_insert({**arguments, "row": row})
        if status == "APPROVED":
            start, end = _window(row)
            for effect, due in (("begin", start), ("end", end)):
                self.context.registry.operations.begin(
                    _INTERNAL_PARENT,
                    f"{self.kind}.{effect}",
                    {"target": arguments["target"], "id": row["id"]},
                    max(0.0, due - time.time()),
                )

    def _create_reservation(self, arguments: Arguments) -> None:
        name = arguments["target"]
        row = self.find(name)
        if row is None or row["id"] != arguments["id"]:
            return
        reservation = (
            f"{name.rpartition('/futureReservations/')[0]}/reservations/{row['reservationName']}"
        )
        sku = row.get("specificSkuProperties", {})
        capacity: Row = (
            {"aggregateReservation": row["aggregateReservation"]}
            if "aggregateReservation" in row
            else {
                "specificReservation": {
                    "count": sku["totalCount"],
                    "instanceProperties": sku["instanceProperties"],
                }
            }
        )
        body = {
            "name": row["reservationName"],
            "specificReservationRequired": row["specificReservationRequired"],
            **capacity,
        }
        complete = self._reservations.complete(reservation, body)
        self.store.put_json(_RESERVATIONS, reservation, self._reservations.with_identity(complete))
        fulfilled = sku.get("totalCount", str(_reserved_chips(row)) if not sku else "0")
        status = {
            "procurementStatus": "FULFILLED",
            "autoCreatedReservations": [LINK + reservation],
            "fulfilledCount": fulfilled,
        }
        self.store.put_json(self.kind, name, {**row, "status": status})

    def _delete_reservation(self, arguments: Arguments) -> None:
        row = self.find(arguments["target"])
        if row is not None and row["id"] == arguments["id"]:
            for link in row["status"].get("autoCreatedReservations", []):
                self.store.delete(_RESERVATIONS, relative_name(link))


def _check_machines(sku: Row, count: str, field: str, zone: str) -> None:
    if int(sku.get(count, 0)) < 1:
        raise bad_field(f"resource.{field}.{count}", str(sku.get(count, "")), "Must be at least 1.")
    name = sku.get("instanceProperties", {}).get("machineType", "")
    kind = machine_type(name)
    if kind is None or not kind.is_in(zone):
        reason = f"Machine type with name '{name}' does not exist in zone '{zone}'."
        raise bad_field(f"resource.{field}.instanceProperties.machineType", name, reason)


def _window(row: Row) -> tuple[float, float]:
    """When the capacity is reserved, in seconds since the epoch."""
    window = row.get("timeWindow", {})
    try:
        start = _seconds(window["startTime"])
        duration = window.get("duration")
        end = _seconds(window["endTime"]) if duration is None else start + int(duration["seconds"])
    except (KeyError, ValueError):
        text = "A time window needs a start time, and a duration or an end time."
        raise invalid(f"Invalid value for field 'resource.timeWindow': ''. {text}") from None
    return start, end


def _seconds(text: str) -> float:
    """Of a time in RFC 3339."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
