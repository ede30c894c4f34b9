"""Reservations of TPUs, as in Compute Engine's JSON (its discovery document, v1)."""

from __future__ import annotations

from typing import Any

import pytest

from tpuctl.model.capacity.reservation import reservation_of

LOCATION = {"zone": "https://www.googleapis.com/compute/v1/projects/p/zones/us-east5-a"}
MACHINES: dict[str, Any] = {
    **LOCATION,
    "name": "ct6e-week",
    "status": "READY",
    "deleteAtTime": "2026-12-01T00:00:00Z",
    "specificReservation": {
        "count": "4",
        "inUseCount": "1",
        "instanceProperties": {"machineType": "ct6e-standard-4t"},
    },
}
CHIPS: dict[str, Any] = {
    **LOCATION,
    "name": "calendar",
    "status": {"procurementStatus": "APPROVED"},
    "timeWindow": {"startTime": "2026-12-05T00:00:00Z", "endTime": "2026-12-12T00:00:00Z"},
    "aggregateReservation": {
        "vmFamily": "VM_FAMILY_CLOUD_TPU_POD_SLICE_CT5P",
        "workloadType": "BATCH",
        "reservedResources": [{"accelerator": {"acceleratorCount": 32, "acceleratorType": "x"}}],
    },
}


def test_reservation_of_machines() -> None:
    reservation = reservation_of(MACHINES)
    assert reservation is not None
    assert reservation.is_usable
    assert (reservation.generation, reservation.count, reservation.in_use) == ("v6e", 4, 1)
    assert str(reservation) == (
        "Reservation ct6e-week in us-east5-a: 4 ct6e-standard-4t, 1 in use, READY, "
        "until 2026-12-01T00:00:00Z."
    )


def test_future_reservation_of_chips() -> None:
    reservation = reservation_of(CHIPS, is_future=True)
    assert reservation is not None
    assert not reservation.is_usable
    assert (reservation.generation, reservation.machine_type, reservation.count) == ("v5p", "", 32)
    assert str(reservation) == (
        "Future reservation calendar in us-east5-a: 32 v5p chips, APPROVED, "
        "from 2026-12-05T00:00:00Z until 2026-12-12T00:00:00Z."
    )


@pytest.mark.parametrize(
    "row",
    [
        {
            "name": "n1",
            **LOCATION,
            "specificReservation": {"instanceProperties": {"machineType": "n1"}},
        },
        {"name": "gpu", **LOCATION, "aggregateReservation": {"vmFamily": "VM_FAMILY_A3"}},
        {"name": "empty", **LOCATION},
    ],
)
def test_other_reservations_are_left_out(row: dict[str, Any]) -> None:
    assert reservation_of(row) is None
