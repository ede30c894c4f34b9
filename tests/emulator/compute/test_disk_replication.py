"""Asynchronous replication of disks, and the groups of disks that are replicated together."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions

from tests.support.locations import PROJECT, REGION, ZONE

FAR_REGION, FAR_ZONE = "europe-west1", "europe-west1-b"
GROUP = f"projects/{PROJECT}/regions/{{}}/resourcePolicies/{{}}"


class Pair:
    """A primary disk, and its secondary one in another place: two zones, or two regions."""

    def __init__(self, engine: Any, *, is_regional: bool) -> None:
        self.engine = engine
        self.scope = "region" if is_regional else "zone"
        self.client = engine.region_disks if is_regional else engine.disks
        self.prefix = "region_disks" if is_regional else "disks"
        self.place = REGION if is_regional else ZONE
        self.far = FAR_REGION if is_regional else FAR_ZONE
        self.primary = f"projects/{PROJECT}/{self.scope}s/{self.place}/disks/main"
        self.secondary = f"projects/{PROJECT}/{self.scope}s/{self.far}/disks/copy"

    def at(self, place: str) -> dict[str, str]:
        return {"project": PROJECT, self.scope: place}

    def insert(self, place: str, name: str, **more: Any) -> Any:
        zones = [f"zones/{place}-b", f"zones/{place}-c"] if self.scope == "region" else []
        disk = {"name": name, "size_gb": 20, "replica_zones": zones, **more}
        request = {**self.at(place), "disk_resource": disk}
        return self.client.insert_unary(request, timeout=60)

    def create(self) -> None:
        self.engine.wait_ok(self.insert(self.place, "main"))
        self.create_secondary()

    def create_secondary(self) -> None:
        primary = {"disk": self.primary}
        self.engine.wait_ok(self.insert(self.far, "copy", async_primary_disk=primary))

    def get(self, place: str, name: str) -> Any:
        return self.client.get({**self.at(place), "disk": name}, timeout=60)

    def start(self) -> Any:
        field = f"{self.prefix}_start_async_replication_request_resource"
        body = {field: {"async_secondary_disk": self.secondary}}
        request = {**self.at(self.place), "disk": "main", **body}
        return self.client.start_async_replication_unary(request, timeout=60)

    def stop(self, place: str, name: str) -> Any:
        request = {**self.at(place), "disk": name}
        return self.client.stop_async_replication_unary(request, timeout=60)

    def states(self) -> tuple[str, list[str]]:
        """Of the secondary disk, and as the primary one has them."""
        secondaries = self.get(self.place, "main").resource_status.async_secondary_disks
        status = self.get(self.far, "copy").resource_status
        return status.async_primary_disk.state, [each.state for each in secondaries.values()]

    def join(self, place: str, name: str, group: str) -> Any:
        region = place if self.scope == "region" else place.rpartition("-")[0]
        policy = f"regions/{region}/resourcePolicies/{group}"
        field = f"{self.prefix}_add_resource_policies_request_resource"
        request = {**self.at(place), "disk": name, field: {"resource_policies": [policy]}}
        return self.client.add_resource_policies_unary(request, timeout=60)


@pytest.fixture(params=[False, True], ids=["zonal", "regional"])
def pair(engine: Any, request: pytest.FixtureRequest) -> Pair:
    return Pair(engine, is_regional=request.param)


def create_group(engine: Any, region: str, name: str) -> None:
    policy = {"name": name, "disk_consistency_group_policy": {}}
    request = {"project": PROJECT, "region": region, "resource_policy_resource": policy}
    engine.wait_ok(engine.resource_policies.insert_unary(request, timeout=60))


def test_replication_is_started_and_stopped(engine: Any, pair: Pair) -> None:
    pair.create()
    link = engine.link
    copy = pair.get(pair.far, "copy")
    assert copy.async_primary_disk.disk == link + pair.primary
    assert copy.async_primary_disk.disk_id == str(pair.get(pair.place, "main").id)
    assert pair.states() == ("CREATED", [])
    operation = engine.wait_ok(pair.start())
    assert operation.operation_type == "startAsyncReplication"
    assert pair.states() == ("ACTIVE", ["ACTIVE"])
    (item,) = pair.get(pair.place, "main").async_secondary_disks.items()
    assert item[0] == item[1].async_replication_disk.disk == link + pair.secondary
    assert item[1].async_replication_disk.disk_id == str(copy.id)
    for place, name in ((pair.place, "main"), (pair.far, "copy")):
        with pytest.raises(exceptions.BadRequest, match="Stop the replication first"):
            pair.client.delete_unary({**pair.at(place), "disk": name}, timeout=60)
    with pytest.raises(exceptions.BadRequest, match="started before"):
        pair.start()
    engine.wait_ok(pair.stop(pair.place, "main"))
    assert pair.states() == ("STOPPED", ["STOPPED"])
    with pytest.raises(exceptions.BadRequest, match="not being replicated"):
        pair.stop(pair.place, "main")
    engine.wait_ok(pair.client.delete_unary({**pair.at(pair.far), "disk": "copy"}, timeout=60))


def test_replication_is_stopped_at_the_secondary_disk(engine: Any, pair: Pair) -> None:
    pair.create()
    engine.wait_ok(pair.start())
    engine.wait_ok(pair.stop(pair.far, "copy"))
    assert pair.states() == ("STOPPED", ["STOPPED"])


def test_secondary_disk_is_elsewhere_and_as_large(engine: Any, pair: Pair) -> None:
    engine.wait_ok(pair.insert(pair.place, "main"))
    primary = {"disk": pair.primary}
    with pytest.raises(exceptions.BadRequest, match="in another region"):
        pair.insert(pair.place, "near", async_primary_disk=primary)
    with pytest.raises(exceptions.BadRequest, match=r"size of|that of the primary disk \(20 GB\)"):
        pair.insert(pair.far, "copy", async_primary_disk=primary, size_gb=30)
    missing = {"disk": pair.primary + "x"}
    with pytest.raises(exceptions.BadRequest, match="referenced disk resource cannot be found"):
        pair.insert(pair.far, "copy", async_primary_disk=missing)
    engine.wait_ok(pair.insert(pair.far, "copy"))
    with pytest.raises(exceptions.BadRequest, match="not a secondary disk"):
        pair.start()


def test_secondary_disk_is_not_attached_while_replicated(engine: Any) -> None:
    pair = Pair(engine, is_regional=False)
    pair.create()
    engine.wait_ok(pair.start())
    far = {"project": PROJECT, "zone": FAR_ZONE}
    machine = engine.controller(zone=FAR_ZONE)
    request = {**far, "instance_resource": machine}
    engine.wait_ok(engine.instances.insert_unary(request, timeout=60))
    request = {
        **far,
        "instance": "controller",
        "attached_disk_resource": {"source": pair.secondary},
    }
    with pytest.raises(exceptions.BadRequest, match="target of a replication"):
        engine.instances.attach_disk_unary(request, timeout=60)
    engine.wait_ok(pair.stop(pair.far, "copy"))
    engine.wait_ok(engine.instances.attach_disk_unary(request, timeout=60))


def test_group_is_stopped_together(engine: Any, pair: Pair) -> None:
    pair.create()
    create_group(engine, REGION, "group")
    engine.wait_ok(pair.join(pair.place, "main", "group"))
    link = engine.link + GROUP.format(REGION, "group")
    assert list(pair.get(pair.place, "main").resource_policies) == [link]
    engine.wait_ok(pair.start())
    (secondary,) = pair.get(pair.place, "main").async_secondary_disks.values()
    assert secondary.async_replication_disk.consistency_group_policy == link
    field = "disks_stop_group_async_replication_resource_resource"
    policy = {field: {"resource_policy": f"regions/{REGION}/resourcePolicies/group"}}
    request = {**pair.at(pair.place), **policy}
    engine.wait_ok(pair.client.stop_group_async_replication_unary(request, timeout=60))
    assert pair.states() == ("STOPPED", ["STOPPED"])
    with pytest.raises(exceptions.BadRequest, match="None of its disks"):
        pair.client.stop_group_async_replication_unary(request, timeout=60)


def test_secondary_disks_of_a_group_are_cloned(engine: Any, pair: Pair) -> None:
    pair.create()
    create_group(engine, FAR_REGION, "far")
    policy = {"source_consistency_group_policy": GROUP.format(FAR_REGION, "far")}
    request = {**pair.at(pair.far), "bulk_insert_disk_resource_resource": policy}
    with pytest.raises(exceptions.BadRequest, match="No disk is in the consistency group"):
        pair.client.bulk_insert_unary(request, timeout=60)
    engine.wait_ok(pair.join(pair.far, "copy", "far"))
    engine.wait_ok(pair.start())
    operation = engine.wait_ok(pair.client.bulk_insert_unary(request, timeout=60))
    assert operation.operation_type == "bulkInsert"
    disks = {disk.name: disk for disk in pair.client.list(pair.at(pair.far))}
    (clone,) = (disk for name, disk in disks.items() if name != "copy")
    assert clone.source_disk == engine.link + pair.secondary
    assert clone.source_consistency_group_policy == engine.link + GROUP.format(FAR_REGION, "far")
    assert clone.size_gb == 20
    assert list(clone.replica_zones) == list(disks["copy"].replica_zones)
    assert clone.resource_status.async_primary_disk.state == ""


def test_only_secondary_disks_are_cloned(engine: Any, pair: Pair) -> None:
    pair.create()
    create_group(engine, REGION, "group")
    engine.wait_ok(pair.join(pair.place, "main", "group"))
    policy = {"source_consistency_group_policy": GROUP.format(REGION, "group")}
    request = {**pair.at(pair.place), "bulk_insert_disk_resource_resource": policy}
    with pytest.raises(exceptions.BadRequest, match="not a secondary disk"):
        pair.client.bulk_insert_unary(request, timeout=60)


def test_disk_is_in_one_group(engine: Any, pair: Pair) -> None:
    pair.create()
    for name in ("first", "second"):
        create_group(engine, REGION, name)
    engine.wait_ok(pair.join(pair.place, "main", "first"))
    with pytest.raises(exceptions.BadRequest, match="is in the consistency group"):
        pair.join(pair.place, "main", "second")
    which = {"project": PROJECT, "region": REGION, "resource_policy": "first"}
    operation = engine.resource_policies.delete_unary(which, timeout=60)
    assert engine.wait_error(operation)[0] == "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"


def test_parameters_of_snapshot_groups_are_refused_by_name(engine: Any) -> None:
    body = {"snapshot_group_parameters": {"source_snapshot_group": "x"}}
    request = {**engine.in_zone, "bulk_insert_disk_resource_resource": body}
    with pytest.raises(exceptions.MethodNotImplemented, match="snapshotGroupParameters"):
        engine.disks.bulk_insert_unary(request, timeout=60)
