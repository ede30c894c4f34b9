"""Data disks: created, attached, and not deletable while in use."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tpu_v2

BASE = "projects/local-project/zones/europe-west4-a"


def make(engine: Any, name: str, **more: Any) -> Any:
    request = {**engine.in_zone, "disk_resource": {"name": name, **more}}
    engine.wait_ok(engine.disks.insert_unary(request, timeout=60))
    return engine.disks.get({**engine.in_zone, "disk": name}, timeout=60)


def test_disk_create_list_label_delete(engine: Any) -> None:
    disk = make(engine, "data", size_gb=200, labels={"tpuctl-stack": "a"})
    assert (disk.size_gb, disk.status) == (200, "READY")
    assert disk.type_ == f"{engine.link}{BASE}/diskTypes/pd-standard"
    assert make(engine, "usual").size_gb == 500
    with pytest.raises(exceptions.Conflict):
        make(engine, "data")
    with pytest.raises(exceptions.BadRequest, match="diskType resource cannot be found"):
        make(engine, "odd", type_=f"{BASE}/diskTypes/floppy")
    labels = {"labels": {"tpuctl-stack": "b"}, "label_fingerprint": disk.label_fingerprint}
    request = {
        **engine.in_zone,
        "resource": "data",
        "zone_set_labels_request_resource": labels,
    }
    engine.wait_ok(engine.disks.set_labels_unary(request, timeout=60))
    listed = engine.disks.list({**engine.in_zone, "filter": "labels.tpuctl-stack=b"})
    assert [item.name for item in listed] == ["data"]
    request = {"project": "local-project"}
    everywhere = dict(engine.disks.aggregated_list(request))
    assert [item.name for item in everywhere["zones/europe-west4-a"].disks] == ["data", "usual"]
    which = {**engine.in_zone, "disk": "data"}
    engine.wait_ok(engine.disks.delete_unary(which, timeout=60))
    with pytest.raises(exceptions.NotFound):
        engine.disks.delete_unary(which, timeout=60)


def test_attached_disk_cannot_be_deleted(engine: Any) -> None:
    make(engine, "data", size_gb=10)
    controller = engine.controller()
    controller["disks"].append({"source": "zones/europe-west4-a/disks/data", "device_name": "d"})
    engine.wait_ok(engine.insert(controller))
    which = {**engine.in_zone, "disk": "data"}
    with pytest.raises(exceptions.BadRequest) as caught:
        engine.disks.delete_unary(which, timeout=60)
    assert caught.value.message.endswith(
        f"The disk resource '{BASE}/disks/data' is already being used by "
        f"'{BASE}/instances/controller'"
    )
    assert caught.value.errors[0]["reason"] == "resourceInUseByAnotherResource"
    other = engine.controller("other")
    other["disks"].append({"source": f"{engine.link}{BASE}/disks/data"})
    with pytest.raises(exceptions.BadRequest):
        engine.insert(other)
    instance = {**engine.in_zone, "instance": "controller"}
    request = {**instance, "device_name": "d"}
    engine.wait_ok(engine.instances.detach_disk_unary(request, timeout=60))
    assert len(engine.get().disks) == 1
    with pytest.raises(exceptions.BadRequest):
        engine.instances.detach_disk_unary(request, timeout=60)
    attached = {"source": f"{BASE}/disks/data", "device_name": "e", "auto_delete": False}
    request = {**instance, "attached_disk_resource": attached}
    engine.wait_ok(engine.instances.attach_disk_unary(request, timeout=60))
    assert engine.get().disks[1].device_name == "e"
    # Only disks with auto_delete are deleted with the instance.
    engine.wait_ok(engine.instances.delete_unary(instance, timeout=60))
    assert [disk.name for disk in engine.disks.list(engine.in_zone)] == ["data"]
    engine.wait_ok(engine.disks.delete_unary(which, timeout=60))


def test_tpu_vm_data_disk_is_in_use(engine: Any) -> None:
    make(engine, "data", size_gb=10)
    node = tpu_v2.Node(
        accelerator_type="v3-8",
        runtime_version="tpu-ubuntu2204-base",
        data_disks=[{"source_disk": f"{BASE}/disks/data", "mode": "READ_WRITE"}],
    )
    parent = BASE.replace("/zones/", "/locations/")
    client = engine.cloud.tpu()
    client.create_node(parent=parent, node_id="n", node=node, timeout=60).result(timeout=60)
    disk = engine.disks.get({**engine.in_zone, "disk": "data"}, timeout=60)
    assert list(disk.users) == [f"{engine.link}{parent}/nodes/n"]
    with pytest.raises(exceptions.BadRequest) as caught:
        engine.disks.delete_unary({**engine.in_zone, "disk": "data"}, timeout=60)
    assert "is already being used by" in caught.value.message


def test_deleting_while_listing_skips_no_disk(engine: Any) -> None:
    for name in ("a", "b", "c", "d", "e"):
        make(engine, name)
    deleted = []
    request = {**engine.in_zone, "max_results": 2}
    for disk in engine.disks.list(request):
        deleted.append(disk.name)
        engine.wait_ok(engine.disks.delete_unary({**engine.in_zone, "disk": disk.name}))
    assert deleted == ["a", "b", "c", "d", "e"]


def test_snapshot_create_list_label_restore_delete(engine: Any) -> None:
    project = {"project": "local-project"}

    disk = make(engine, "data", size_gb=200)
    snapshot = {"name": "data-1", "labels": {"a": "b"}}
    request = {**engine.in_zone, "disk": "data", "snapshot_resource": snapshot}
    operation = engine.wait_ok(engine.disks.create_snapshot_unary(request, timeout=60))
    assert operation.operation_type == "createSnapshot"
    assert operation.target_link == f"{engine.link}{BASE}/disks/data"
    with pytest.raises(exceptions.Conflict):
        engine.disks.create_snapshot_unary(request, timeout=60)
    (snapshot_taken,) = engine.snapshots.list(project)
    assert (snapshot_taken.name, snapshot_taken.status, snapshot_taken.disk_size_gb) == (
        "data-1",
        "READY",
        200,
    )
    assert (snapshot_taken.source_disk, snapshot_taken.source_disk_id) == (
        disk.self_link,
        str(disk.id),
    )
    labels = {"labels": {"a": "c"}, "label_fingerprint": snapshot_taken.label_fingerprint}
    request = {"resource": "data-1", "global_set_labels_request_resource": labels, **project}
    engine.wait_ok(engine.snapshots.set_labels_unary(request, timeout=60))
    # It outlives its disk and can be restored to a new one.
    engine.wait_ok(engine.disks.delete_unary({**engine.in_zone, "disk": "data"}, timeout=60))
    which = {**project, "snapshot": "data-1"}
    assert dict(engine.snapshots.get(which, timeout=60).labels) == {"a": "c"}
    copy = make(engine, "copy", source_snapshot="global/snapshots/data-1")
    assert (copy.size_gb, copy.source_snapshot_id) == (200, str(snapshot_taken.id))
    assert copy.source_snapshot == snapshot_taken.self_link
    with pytest.raises(exceptions.BadRequest, match="snapshot size"):
        make(engine, "small", source_snapshot=snapshot_taken.self_link, size_gb=10)
    engine.wait_ok(engine.snapshots.delete_unary(which, timeout=60))
    with pytest.raises(exceptions.NotFound):
        engine.snapshots.get(which, timeout=60)


def test_snapshot_insert_without_disk_method(engine: Any) -> None:
    make(engine, "data", size_gb=10)
    source = f"{engine.link}{BASE}/disks/data"
    snapshot = {"name": "s", "source_disk": source}
    request = {"project": "local-project", "snapshot_resource": snapshot}
    engine.wait_ok(engine.snapshots.insert_unary(request, timeout=60))
    for wrong in ({"name": "t", "source_disk": f"{source}-2"}, {"name": "u"}):
        with pytest.raises((exceptions.NotFound, exceptions.BadRequest)):
            engine.snapshots.insert_unary(
                {"project": "local-project", "snapshot_resource": wrong}, timeout=60
            )


UBUNTU = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"
KEY = {"raw_key": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="}
KMS = "projects/p/locations/europe-west4/keyRings/r/cryptoKeys/k"
# Of an additional disk: what the request says, and the disk that deleting the instance leaves.
DISK_FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "local SSD": ({"type_": "SCRATCH", "initialize_params": {"disk_type": "local-ssd"}}, ""),
    "blank": ({"auto_delete": True, "initialize_params": {"disk_size_gb": 10}}, ""),
    "of an image": ({"auto_delete": True, "initialize_params": {"source_image": UBUNTU}}, ""),
    "of a snapshot": ({"initialize_params": {"source_snapshot": "global/snapshots/kept"}}, "box-1"),
    "kept": ({"initialize_params": {"disk_size_gb": 10, "description": "more"}}, "box-1"),
    "by name": ({"source": f"zones/{BASE.rpartition('/')[2]}/disks/data"}, "data"),
    "by partial link": ({"source": f"{BASE}/disks/data", "mode": "READ_ONLY"}, "data"),
    "by link, deleted": (
        {"source": f"https://www.googleapis.com/compute/v1/{BASE}/disks/data", "auto_delete": True},
        "",
    ),
    "customer's key": (
        {"auto_delete": True, "disk_encryption_key": KEY, "initialize_params": {}},
        "",
    ),
    "key of KMS": (
        {"source": f"{BASE}/disks/data", "disk_encryption_key": {"kms_key_name": KMS}},
        "data",
    ),
}


def test_instances_live_with_every_form_of_disk(engine: Any) -> None:
    """Created, listed, stopped, started, detached from, and deleted."""

    def live(name: str, disk: dict[str, Any], left: str) -> None:
        which = {**engine.in_zone, "instance": name}
        body = engine.controller(name)
        body["disks"].append(disk)
        engine.wait_ok(engine.insert(body))
        [_, attached] = engine.get(name).disks
        assert attached.device_name
        assert attached.type_ == disk.get("type_", "PERSISTENT")
        if "disk_encryption_key" in disk:
            key = attached.disk_encryption_key
            assert not key.raw_key
            assert key.kms_key_name or key.sha256 == "PrG9Q5lH63YpmOVmzMLgmceREYsvQFecxPfaK1Bht/k="
        [listed] = engine.instances.list(engine.in_zone)
        assert len(listed.disks) == 2
        engine.wait_ok(engine.instances.stop_unary(which, timeout=60))
        engine.wait_ok(engine.instances.start_unary(which, timeout=60))
        if attached.type_ == "PERSISTENT" and left:
            device = {"device_name": attached.device_name}
            engine.wait_ok(engine.instances.detach_disk_unary({**which, **device}, timeout=60))
            again = {"attached_disk_resource": {"source": f"{BASE}/disks/{left}"}}
            engine.wait_ok(engine.instances.attach_disk_unary({**which, **again}, timeout=60))
        engine.wait_ok(engine.instances.delete_unary(which, timeout=60))

    make(engine, "data", size_gb=10)
    snapshot = {"project": "local-project", "snapshot_resource": {"name": "kept"}}
    snapshot["snapshot_resource"]["source_disk"] = f"{BASE}/disks/data"
    engine.wait_ok(engine.snapshots.insert_unary(snapshot, timeout=60))
    for form, (disk, left) in DISK_FORMS.items():
        live("box", disk, left)
        disks = [each.name for each in engine.disks.list(engine.in_zone)]
        expected = {left, "data"} - {"", "" if form != "by link, deleted" else "data"}
        assert set(disks) == expected, form
        if left == "box-1":
            which = {**engine.in_zone, "disk": left}
            engine.wait_ok(engine.disks.delete_unary(which, timeout=60))
        if form == "by link, deleted":
            make(engine, "data", size_gb=10)


def test_disk_that_is_written_has_one_user(engine: Any) -> None:
    make(engine, "data", size_gb=10)
    for name, mode in (("one", "READ_ONLY"), ("two", "READ_ONLY")):
        disk = {"source": f"{BASE}/disks/data", "mode": mode, "auto_delete": True}
        body = engine.controller(name)
        body["disks"].append(disk)
        engine.wait_ok(engine.insert(body))
    engine.wait_ok(engine.instances.delete_unary({**engine.in_zone, "instance": "one"}))
    assert "data" in [each.name for each in engine.disks.list(engine.in_zone)]  # two has it
    engine.wait_ok(engine.instances.delete_unary({**engine.in_zone, "instance": "two"}))
    make(engine, "data", size_gb=10)
    for name, mode in (("one", "READ_WRITE"), ("two", "READ_ONLY")):
        body = engine.controller(name)
        body["disks"].append({"source": f"{BASE}/disks/data", "mode": mode})
        if name == "two":
            with pytest.raises(exceptions.BadRequest, match="already being used"):
                engine.insert(body)
        else:
            engine.wait_ok(engine.insert(body))


def test_boot_disk_is_replaced_while_the_instance_is_stopped(engine: Any) -> None:
    engine.wait_ok(engine.insert(engine.controller()))
    which = {**engine.in_zone, "instance": "controller"}
    [boot] = engine.get().disks
    detach = {**which, "device_name": boot.device_name}
    with pytest.raises(exceptions.BadRequest, match="must be stopped"):
        engine.instances.detach_disk_unary(detach, timeout=60)
    engine.wait_ok(engine.instances.stop_unary(which, timeout=60))
    engine.wait_ok(engine.instances.detach_disk_unary(detach, timeout=60))
    with pytest.raises(exceptions.BadRequest, match="no boot disk"):
        engine.instances.start_unary(which, timeout=60)
    attach = {**which, "attached_disk_resource": {"source": boot.source, "boot": True}}
    engine.wait_ok(engine.instances.attach_disk_unary(attach, timeout=60))
    engine.wait_ok(engine.instances.start_unary(which, timeout=60))
    assert engine.get().status == "RUNNING"


def test_disk_of_an_image_has_licenses_of_its_own_too(engine: Any) -> None:
    image = "projects/debian-cloud/global/images/family/debian-12"
    plain = make(engine, "plain", source_image=image)
    disk = make(engine, "licensed", source_image=image, licenses=["x"], license_codes=[7])
    assert list(disk.licenses) == [*plain.licenses, "x"]
    assert list(disk.license_codes) == [*plain.license_codes, 7]
    assert disk.guest_os_features == plain.guest_os_features
