"""Regional disks: replicated in two zones, billed and counted twice."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions

from tests.support.callers import Member, needs_role
from tests.support.locations import PROJECT, REGION, ZONE

OTHER_ZONE = f"{REGION}-b"
REGIONAL = f"projects/{PROJECT}/regions/{REGION}/disks"
REPLICAS = [f"zones/{ZONE}", f"zones/{OTHER_ZONE}"]


def make(engine: Any, name: str = "data", **more: Any) -> Any:
    engine.wait_ok(insert(engine, name, **more))
    return get(engine, name)


def insert(engine: Any, name: str = "data", **more: Any) -> Any:
    kind = f"regions/{REGION}/diskTypes/pd-balanced"
    disk = {"name": name, "size_gb": 20, "type_": kind, "replica_zones": REPLICAS, **more}
    request = {**engine.in_region, "disk_resource": disk}
    return engine.region_disks.insert_unary(request, timeout=60)


def get(engine: Any, name: str = "data") -> Any:
    return engine.region_disks.get({**engine.in_region, "disk": name}, timeout=60)


def make_zonal(engine: Any, name: str, **more: Any) -> None:
    disk = {"name": name, "size_gb": 20, **more}
    engine.wait_ok(engine.disks.insert_unary({**engine.in_zone, "disk_resource": disk}, timeout=60))


def attach(engine: Any, instance: str, source: str = f"{REGIONAL}/data", **more: Any) -> Any:
    disk = {"source": source}
    request = {**engine.in_zone, "instance": instance, "attached_disk_resource": disk, **more}
    return engine.instances.attach_disk_unary(request, timeout=60)


def test_regional_disk_create_list_change_delete(engine: Any) -> None:
    operation = engine.wait_ok(insert(engine, labels={"tpuctl-stack": "a"}))
    assert operation.region == f"{engine.link}projects/{PROJECT}/regions/{REGION}"
    disk = get(engine)
    assert disk.self_link == f"{engine.link}{REGIONAL}/data"
    assert disk.region == f"{engine.link}projects/{PROJECT}/regions/{REGION}"
    assert (disk.zone, disk.size_gb, disk.status) == ("", 20, "READY")
    zones = f"{engine.link}projects/{PROJECT}/zones"
    assert disk.replica_zones == [f"{zones}/{ZONE}", f"{zones}/{OTHER_ZONE}"]
    kind = f"projects/{PROJECT}/regions/{REGION}/diskTypes/pd-balanced"
    assert disk.type_ == engine.link + kind
    with pytest.raises(exceptions.Conflict):
        insert(engine)
    make_zonal(engine, "data")  # another disk
    assert [each.name for each in engine.region_disks.list(engine.in_region)] == ["data"]
    everywhere = dict(engine.disks.aggregated_list({"project": PROJECT}))
    assert [each.name for each in everywhere[f"regions/{REGION}"].disks] == ["data"]
    assert [each.name for each in everywhere[f"zones/{ZONE}"].disks] == ["data"]
    labels = {"labels": {"a": "b"}, "label_fingerprint": disk.label_fingerprint}
    body = {"resource": "data", "region_set_labels_request_resource": labels}
    engine.wait_ok(engine.region_disks.set_labels_unary({**engine.in_region, **body}, timeout=60))
    body = {"disk": "data", "region_disks_resize_request_resource": {"size_gb": 30}}
    engine.wait_ok(engine.region_disks.resize_unary({**engine.in_region, **body}, timeout=60))
    assert (get(engine).size_gb, get(engine).labels) == (30, {"a": "b"})
    which = {**engine.in_region, "disk": "data"}
    engine.wait_ok(engine.region_disks.delete_unary(which, timeout=60))
    with pytest.raises(exceptions.NotFound):
        get(engine)


@pytest.mark.parametrize(
    ("replicas", "text"),
    [
        ([], "Required field 'resource.replicaZones' not specified"),
        ([f"zones/{ZONE}"], "Exactly two"),
        ([f"zones/{ZONE}", f"zones/{ZONE}"], "Exactly two"),
        ([f"zones/{ZONE}", "zones/us-central1-a"], "in the region of the disk"),
        ([f"zones/{ZONE}", f"zones/{REGION}-x"], "in the region of the disk"),
    ],
)
def test_replica_zones_are_two_of_the_region(engine: Any, replicas: list[str], text: str) -> None:
    with pytest.raises(exceptions.BadRequest, match=text):
        insert(engine, replica_zones=replicas)


def test_types_and_zones_of_the_other_kind_are_refused(engine: Any) -> None:
    with pytest.raises(exceptions.BadRequest, match="diskType resource cannot be found"):
        insert(engine, type_=f"regions/{REGION}/diskTypes/pd-extreme")
    with pytest.raises(exceptions.BadRequest, match="replicaZones"):
        make_zonal(engine, "data", replica_zones=REPLICAS)


def test_regional_disk_is_a_clone_or_of_a_snapshot(engine: Any) -> None:
    make_zonal(engine, "source")
    source = f"projects/{PROJECT}/zones/{ZONE}/disks/source"
    assert make(engine, "clone", source_disk=source).source_disk == engine.link + source
    elsewhere = [f"zones/{REGION}-b", f"zones/{REGION}-c"]
    with pytest.raises(exceptions.BadRequest, match="zone of the source disk"):
        insert(engine, "far", source_disk=source, replica_zones=elsewhere)
    body = {"disk": "clone", "snapshot_resource": {"name": "saved"}}
    operation = engine.region_disks.create_snapshot_unary({**engine.in_region, **body}, timeout=60)
    engine.wait_ok(operation)
    snapshot = engine.snapshots.get({"project": PROJECT, "snapshot": "saved"}, timeout=60)
    assert snapshot.source_disk == f"{engine.link}{REGIONAL}/clone"
    assert list(snapshot.storage_locations) == [REGION]
    assert make(engine, "restored", source_snapshot="global/snapshots/saved").size_gb == 20


def test_quota_counts_each_replica(engine: Any, cloud: Any) -> None:
    make(engine, size_gb=100)
    region = engine.regions.get({"project": PROJECT, "region": REGION}, timeout=60)
    usage = {quota.metric: quota.usage for quota in region.quotas}
    assert usage["SSD_TOTAL_GB"] == 200
    cloud.put_setting("quota", {"SSD_TOTAL_GB": {REGION: 300}})
    code, text = engine.wait_error(insert(engine, "more", size_gb=60))
    assert (code, "SSD_TOTAL_GB" in text) == ("QUOTA_EXCEEDED", True)
    make(engine, "fits", size_gb=50)


def test_attached_regional_disk_is_in_use_until_forced(engine: Any) -> None:
    make(engine)
    for name in ("first", "second"):
        engine.wait_ok(engine.insert(engine.controller(name)))
    engine.wait_ok(attach(engine, "first"))
    link = f"{engine.link}{REGIONAL}/data"
    assert [disk.source for disk in engine.get("first").disks][1:] == [link]
    assert [user.rpartition("/")[2] for user in get(engine).users] == ["first"]
    which = {**engine.in_region, "disk": "data"}
    with pytest.raises(exceptions.BadRequest, match="already being used"):
        engine.region_disks.delete_unary(which, timeout=60)
    with pytest.raises(exceptions.BadRequest, match="already being used"):
        attach(engine, "second")
    engine.wait_ok(attach(engine, "second", force_attach=True))
    assert [user.rpartition("/")[2] for user in get(engine).users] == ["second"]
    assert len(engine.get("first").disks) == 1


def test_only_regional_disks_are_attached_by_force(engine: Any) -> None:
    make_zonal(engine, "data")
    engine.wait_ok(engine.insert(engine.controller()))
    with pytest.raises(exceptions.BadRequest, match="regional disks can be attached by force"):
        attach(engine, "controller", f"zones/{ZONE}/disks/data", force_attach=True)
    scratch = {"type_": "SCRATCH", "force_attach": True}
    body = engine.controller("second")
    body["disks"].append(scratch)
    with pytest.raises(exceptions.BadRequest, match="regional disks can be attached by force"):
        engine.insert(body)


def test_regional_disk_is_attached_in_its_zones(engine: Any) -> None:
    make(engine, replica_zones=[f"zones/{REGION}-b", f"zones/{REGION}-c"])
    engine.wait_ok(engine.insert(engine.controller()))
    with pytest.raises(exceptions.BadRequest, match="no replica in the zone"):
        attach(engine, "controller")


def test_instance_boots_from_a_new_regional_disk(engine: Any) -> None:
    body = engine.controller()
    body["disks"][0]["initialize_params"]["replica_zones"] = REPLICAS
    engine.wait_ok(engine.insert(body))
    assert engine.get().disks[0].source == f"{engine.link}{REGIONAL}/controller"
    assert len(get(engine, "controller").replica_zones) == 2
    other = engine.controller("other")
    params = other["disks"][0]["initialize_params"]
    params["replica_zones"] = [f"zones/{REGION}-b", f"zones/{REGION}-c"]
    with pytest.raises(exceptions.BadRequest, match=r"zone '.*' of the instance"):
        engine.insert(other)
    which = {**engine.in_zone, "instance": "controller"}
    engine.wait_ok(engine.instances.delete_unary(which, timeout=60))
    assert list(engine.region_disks.list(engine.in_region)) == []


def test_instance_takes_a_disk_by_force(engine: Any) -> None:
    make(engine)
    engine.wait_ok(engine.insert(engine.controller("first")))
    engine.wait_ok(attach(engine, "first"))
    body = engine.controller("second")
    body["disks"].append({"source": f"{REGIONAL}/data", "force_attach": True})
    engine.wait_ok(engine.insert(body))
    assert (len(engine.get("first").disks), len(engine.get("second").disks)) == (1, 2)


def test_regional_disks_need_their_permissions(engine: Any, cloud: Any) -> None:
    make(engine)
    ann = Member(cloud, "ann")
    path, body = f"/compute/v1/{REGIONAL}/data/resize", {"sizeGb": "40"}
    refusal = f"'compute.disks.resize' permission for '{REGIONAL}/data'"
    needs_role(cloud, ann, "roles/compute.storageAdmin", refusal, path, body)
