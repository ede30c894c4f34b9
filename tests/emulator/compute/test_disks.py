"""Data disks: created, attached, and not deletable while in use."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tpu_v2

BASE = "projects/local-project/zones/europe-west4-a"


def make(engine: Any, name: str, **more: Any) -> Any:
    request = {**engine.in_zone, "disk_resource": {"name": name, **more}}
    engine.wait_ok(engine.disks.insert_unary(request, timeout=60))
    return engine.disks.get({**engine.in_zone, "disk": name}, timeout=60)


async def test_disk_create_list_label_delete(engine: Any) -> None:
    def run() -> None:
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

    await asyncio.to_thread(run)


async def test_attached_disk_cannot_be_deleted(engine: Any) -> None:
    def run() -> None:
        make(engine, "data", size_gb=10)
        controller = engine.controller()
        controller["disks"].append(
            {"source": "zones/europe-west4-a/disks/data", "device_name": "d"}
        )
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

    await asyncio.to_thread(run)


async def test_tpu_vm_data_disk_is_in_use(engine: Any) -> None:
    def run() -> None:
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

    await asyncio.to_thread(run)


async def test_deleting_while_listing_skips_no_disk(engine: Any) -> None:
    def run() -> None:
        for name in ("a", "b", "c", "d", "e"):
            make(engine, name)
        deleted = []
        request = {**engine.in_zone, "max_results": 2}
        for disk in engine.disks.list(request):
            deleted.append(disk.name)
            engine.wait_ok(engine.disks.delete_unary({**engine.in_zone, "disk": disk.name}))
        assert deleted == ["a", "b", "c", "d", "e"]

    await asyncio.to_thread(run)


async def test_snapshot_create_list_label_restore_delete(engine: Any) -> None:
    project = {"project": "local-project"}

    def run() -> None:
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

    await asyncio.to_thread(run)


async def test_snapshot_insert_without_disk_method(engine: Any) -> None:
    def run() -> None:
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

    await asyncio.to_thread(run)
