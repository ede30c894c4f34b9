"""Reservations, calendar-mode requests for them, and the instances that use them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.api_core import exceptions

from tests.support.locations import PROJECT, V5P_ZONE
from tests.support.tpu_instances import V6E, tpu_instance

IN_ZONE = {"project": PROJECT, "zone": V5P_ZONE}


def reserve(engine: Any, name: str, **more: Any) -> Any:
    """Reserve one machine with four v6e chips."""
    resource = {
        "name": name,
        "specific_reservation": {"count": 1, "instance_properties": {"machine_type": V6E}},
        "specific_reservation_required": True,
        **more,
    }
    request = {**IN_ZONE, "reservation_resource": resource}
    return engine.wait_ok(engine.reservations.insert_unary(request, timeout=60))


def bound_to(reservation: str, **more: Any) -> dict[str, Any]:
    """The request for an instance that uses a reservation."""
    affinity = {
        "consume_reservation_type": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": [reservation],
    }
    scheduling = {
        "provisioning_model": "RESERVATION_BOUND",
        "instance_termination_action": "DELETE",
    }
    return tpu_instance(scheduling=scheduling, reservation_affinity=affinity, **more)


def get(engine: Any, name: str) -> Any:
    return engine.reservations.get({**IN_ZONE, "reservation": name}, timeout=60)


def test_reservation_of_the_machines_of_a_template(engine: Any) -> None:
    template = engine.create_template()
    specific = {"count": 2, "source_instance_template": template}
    request = {**engine.in_zone, "reservation_resource": {"name": "from-template"}}
    request["reservation_resource"]["specific_reservation"] = specific
    engine.wait_ok(engine.reservations.insert_unary(request, timeout=60))
    which = {**engine.in_zone, "reservation": "from-template"}
    reserved = engine.reservations.get(which, timeout=60).specific_reservation
    which = {"project": PROJECT, "instance_template": "bert"}
    source = engine.instance_templates.get(which, timeout=60)
    assert reserved.source_instance_template == source.self_link
    assert reserved.instance_properties.machine_type == source.properties.machine_type
    for wrong, text in (
        ({"source_instance_template": f"projects/{PROJECT}/global/instanceTemplates/x"}, "found"),
        ({"instance_properties": {"machine_type": "n1-standard-1"}}, "must be excluded"),
    ):
        request["reservation_resource"] = {
            "name": "wrong",
            "specific_reservation": specific | wrong,
        }
        with pytest.raises(exceptions.BadRequest, match=text):
            engine.reservations.insert_unary(request, timeout=60)


async def test_instance_uses_a_reservation(engine: Any) -> None:
    """Neither a stockout nor quota concerns it; the reservation is full then, and kept."""
    registry = engine.cloud.server.registry
    registry.faults.add({"kind": "stockout", "zone": V5P_ZONE, "times": "unlimited"})
    quota = {"TPUS-PER-TPU-FAMILY-per-project-region": {"us-east5": 0}}
    registry.settings.put("quota", quota)

    def run() -> None:
        reserve(engine, "mine")
        assert get(engine, "mine").status == "READY"
        engine.wait_ok(engine.instances.insert_unary(bound_to("mine"), timeout=60))
        instance = engine.instances.get({**IN_ZONE, "instance": "bert-tpu"}, timeout=60)
        assert instance.scheduling.provisioning_model == "RESERVATION_BOUND"
        assert list(instance.reservation_affinity.values) == ["mine"]
        assert get(engine, "mine").specific_reservation.in_use_count == 1
        with pytest.raises(exceptions.BadRequest, match=r"No available resources in specified"):
            engine.instances.insert_unary(bound_to("mine", name="other"), timeout=60)
        with pytest.raises(exceptions.BadRequest, match="already being used by"):
            engine.reservations.delete_unary({**IN_ZONE, "reservation": "mine"}, timeout=60)
        which = {**IN_ZONE, "instance": "bert-tpu"}
        engine.wait_ok(engine.instances.delete_unary(which, timeout=60))
        engine.wait_ok(
            engine.reservations.delete_unary({**IN_ZONE, "reservation": "mine"}, timeout=60)
        )
        assert not list(engine.reservations.list(IN_ZONE))

    await asyncio.to_thread(run)


@pytest.mark.parametrize(
    ("reservation", "text"),
    [
        ("none", "Specified reservations [none] do not exist."),
        (
            "projects/other-project/reservations/mine",
            "Specified reservations [projects/other-project/reservations/mine] do not exist.",
        ),
        ("small", "No available resources in specified reservations."),
        (
            "open",
            "Specified reservations [open] can not be targeted as specificReservationRequired is "
            "not set",
        ),
    ],
)
def test_reservation_that_does_not_fit_is_refused(engine: Any, reservation: str, text: str) -> None:
    kind = {"machine_type": "ct6e-standard-1t"}
    reserve(engine, "small", specific_reservation={"count": 1, "instance_properties": kind})
    reserve(engine, "open", specific_reservation_required=False)
    with pytest.raises(exceptions.BadRequest) as caught:
        engine.instances.insert_unary(bound_to(reservation), timeout=60)
    assert "Invalid value for field 'resource.reservationAffinity': '{" in caught.value.message
    assert caught.value.message.endswith(text)


async def test_reservation_is_shared_with_other_projects(engine: Any) -> None:
    registry = engine.cloud.server.registry
    row = {
        "specificReservation": {"count": "1", "instanceProperties": {"machineType": V6E}},
        "specificReservationRequired": True,
        "status": "READY",
        "shareSettings": {"shareType": "SPECIFIC_PROJECTS", "projectMap": {PROJECT: {}}},
    }
    name = f"projects/other-project/zones/{V5P_ZONE}/reservations/shared"
    registry.store.put_json("compute.reservations", name, row)
    request = bound_to("projects/other-project/reservations/shared")
    await asyncio.to_thread(lambda: engine.wait_ok(engine.instances.insert_unary(request)))


@pytest.mark.parametrize(
    ("machine_type", "count", "text"),
    [("tpu7x-standard-4t", 1, "does not exist in zone 'us-east5-a'"), (V6E, 0, "at least 1")],
)
def test_invalid_reservation_is_refused(
    engine: Any, machine_type: str, count: int, text: str
) -> None:
    kind = {"machine_type": machine_type}
    specific = {"count": count, "instance_properties": kind}
    with pytest.raises(exceptions.BadRequest, match=text):
        reserve(engine, "mine", specific_reservation=specific)


def request_capacity(engine: Any, starts_in: timedelta, **more: Any) -> Any:
    """Submit a calendar-mode request for a day and eight v6e chips, and return it."""
    start = datetime.now(UTC) + starts_in
    resource = {
        "name": "next-week",
        "reservation_mode": "CALENDAR",
        "planning_status": "SUBMITTED",
        "reservation_name": "booked",
        "specific_reservation_required": True,
        "time_window": {"start_time": start.isoformat(), "duration": {"seconds": 86400}},
        **more,
    }
    if "specific_sku_properties" not in more:
        resource["aggregate_reservation"] = {
            "vm_family": "VM_FAMILY_CLOUD_TPU_LITE_POD_SLICE_CT6E",
            "reserved_resources": [{"accelerator": {"accelerator_count": 8}}],
        }
    request = {**IN_ZONE, "future_reservation_resource": resource}
    engine.wait_ok(engine.future_reservations.insert_unary(request, timeout=60))
    which = {**IN_ZONE, "future_reservation": "next-week"}
    return engine.future_reservations.get(which, timeout=60)


async def test_calendar_request_creates_a_reservation_at_its_start(engine: Any) -> None:
    def run() -> None:
        request = request_capacity(engine, timedelta(seconds=-1))
        assert request.status.procurement_status == "FULFILLED"
        assert [link.rpartition("/")[2] for link in request.status.auto_created_reservations] == [
            "booked"
        ]
        for name in ("first", "second"):
            engine.wait_ok(engine.instances.insert_unary(bound_to("booked", name=name)))
        with pytest.raises(exceptions.BadRequest, match="No available resources"):
            engine.instances.insert_unary(bound_to("booked", name="third"), timeout=60)
        (used,) = get(engine, "booked").aggregate_reservation.in_use_resources
        assert used.accelerator.accelerator_count == 8

    await asyncio.to_thread(run)
    operations = engine.cloud.server.registry.operations
    (end,) = operations.pending("compute.futureReservations.end")
    assert 86390 < end.due - end.started < 86400
    service = engine.cloud.server.registry.service("compute")
    service.effects["compute.futureReservations.end"].finish(end.arguments)
    assert not await asyncio.to_thread(lambda: list(engine.reservations.list(IN_ZONE)))


def test_calendar_request_waits_for_its_start(engine: Any) -> None:
    sku = {"total_count": 2, "instance_properties": {"machine_type": V6E}}
    request = request_capacity(engine, timedelta(days=7), specific_sku_properties=sku)
    assert request.status.procurement_status == "APPROVED"
    with pytest.raises(exceptions.BadRequest, match="do not exist"):
        engine.instances.insert_unary(bound_to("booked"), timeout=60)
    (listed,) = engine.future_reservations.list(IN_ZONE)
    assert listed.name == "next-week"
    everywhere = dict(engine.future_reservations.aggregated_list({"project": PROJECT}))
    (counterpart,) = everywhere[f"zones/{V5P_ZONE}"].future_reservations
    assert counterpart == listed
    engine.wait_ok(
        engine.future_reservations.delete_unary({**IN_ZONE, "future_reservation": "next-week"})
    )
    assert not list(engine.future_reservations.list(IN_ZONE))


def test_calendar_request_in_the_past_is_refused(engine: Any) -> None:
    with pytest.raises(exceptions.BadRequest, match="must end in the future"):
        request_capacity(engine, timedelta(days=-3))
