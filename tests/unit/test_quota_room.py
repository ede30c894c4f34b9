"""How many nodes fit, with expected values for limits, usage, and external addresses."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.locations import REGION
from tpuctl.catalog import accelerator_type
from tpuctl.model.capacity.quota import Region
from tpuctl.model.capacity.quota_room import Room, rooms_of
from tpuctl.model.status.inventory import InventoryItem
from tpuctl.resources.tpu.queued_resource import QueuedNodes
from tpuctl.resources.tpu.tpu_node import TpuNode

HERE, THERE = "europe-west4-a", "us-central1-a"
DEMAND, SPOT = "TPUV3sPerProjectPer{}ForTPUAPI", "TPUV3sPreemptiblePerProjectPer{}ForTPUAPI"


def rooms(
    allowed: Mapping[tuple[str, str], float | None],
    *items: InventoryItem,
    name: str = "v3-8",
    addresses: tuple[float, float] | None = None,
) -> dict[tuple[str, str], Room]:
    accelerator = accelerator_type(name)
    assert accelerator is not None
    quotas = {"IN_USE_ADDRESSES": addresses} if addresses else {}
    room_list = rooms_of(
        accelerator, (HERE, THERE), items, allowed, {REGION: Region(REGION, quotas)}
    )
    return {(room.zone, room.capacity): room for room in room_list}


def node(
    zone: str, name: str = "v3-8", capacity: str = "on-demand", count: int = 1
) -> InventoryItem:
    kind = QueuedNodes if count > 1 else TpuNode
    return InventoryItem(kind, "n", "", zone, "READY", name, capacity=capacity, count=count)  # type: ignore[arg-type]


def test_nodes_that_fit_in_zone() -> None:
    allowed = {(DEMAND.format("Zone"), HERE): 40.0, (SPOT.format("Zone"), HERE): 7.0}
    room_by_zone = rooms(allowed, node(HERE), node(THERE), node(HERE, capacity="spot"))
    demand, spot = room_by_zone[HERE, "on-demand"], room_by_zone[HERE, "spot"]
    assert (demand.allowed, demand.used, demand.takes, demand.nodes) == (40, 8, 8, 4)
    assert (demand.bound, demand.limit.unit) == ("zone", "cores")
    assert (spot.allowed, spot.used, spot.nodes) == (7, 8, 0), "never negative"
    assert demand.preferred == 48, "one node more than fits"
    assert spot.preferred == 16, "usage plus one node"
    allowed = {(DEMAND.format("Zone"), HERE): 40.0}
    room = rooms(allowed, node(HERE, count=3))[HERE, "on-demand"]
    assert (room.used, room.nodes) == (24, 2)


def test_region_or_addresses_may_be_the_limit() -> None:
    allowed = {(DEMAND.format("Zone"), HERE): 40.0, (DEMAND.format("Region"), REGION): 24.0}
    room = rooms(allowed, node("europe-west4-b"))[HERE, "on-demand"]
    assert (room.used, room.nodes, room.bound) == (0, 2, "region"), (
        "8 of 24 are used in another zone"
    )
    room = rooms(allowed, addresses=(8.0, 7.0))[HERE, "on-demand"]
    assert (room.nodes, room.bound) == (1, "addresses")
    pods = {("TPUV3sPodPerProjectPerZoneForTPUAPI", HERE): 320.0}
    room = rooms(pods, name="v3-32", addresses=(8.0, 0.0))[HERE, "on-demand"]
    assert (room.nodes, room.bound) == (2, "addresses"), "four workers each"


def test_unknown_limits_are_not_guessed() -> None:
    room_by_zone = rooms({})
    assert {(room.allowed, room.nodes) for room in room_by_zone.values()} == {(None, None)}
    room_by_zone = rooms({}, addresses=(1.0, 1.0))
    assert room_by_zone[HERE, "on-demand"].nodes is None
    unlimited = rooms({(DEMAND.format("Zone"), HERE): None})[HERE, "on-demand"]
    assert (unlimited.allowed, unlimited.nodes, unlimited.bound) == (float("inf"), None, "")
    both = {(DEMAND.format("Zone"), HERE): 40.0, (DEMAND.format("Zone"), THERE): None}
    assert next(iter(rooms(both))) == (THERE, "on-demand"), "unlimited first"


def test_pools_of_compute_engine_are_separate() -> None:
    """Each API has a row; a zone that only Compute Engine offers has one."""
    where = "europe-west1-b", "europe-west1-c"
    allowed = {
        ("TPUV5PPerProjectPerZoneForTPUAPI", where[0]): 128.0,  # cores
        ("TPU-V5P-per-project-region", "europe-west1"): 12.0,  # chips
    }
    accelerator = accelerator_type("v5p-8")
    assert accelerator is not None
    rows = {
        (room.zone, room.limit.api): (room.takes, room.allowed, room.used, room.nodes, room.bound)
        for room in rooms_of(accelerator, where, [node(where[0], "v5p-8")], allowed, {})
        if room.capacity == "on-demand"
    }
    assert rows == {
        (where[0], "tpu"): (8, 128, 8, 15, "zone"),
        (where[0], "compute"): (4, 12, 0, 3, "region"),
        (where[1], "compute"): (4, 12, 0, 3, "region"),
    }


def test_zones_are_sorted_by_available_nodes() -> None:
    allowed = {
        (DEMAND.format("Zone"), HERE): 8.0,
        (SPOT.format("Zone"), HERE): 0.0,
        (DEMAND.format("Zone"), THERE): 80.0,
    }
    order = [(room.zone, room.capacity, room.nodes) for room in rooms(allowed).values()]
    assert order == [
        (THERE, "on-demand", 10),
        (HERE, "on-demand", 1),
        (HERE, "spot", 0),
        (THERE, "spot", None),
    ]
