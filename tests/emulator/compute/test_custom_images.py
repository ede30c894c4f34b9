"""Custom images: of disks, snapshots and other images."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions

from tests.support.callers import Member, grant, make_role, needs_role
from tests.support.locations import PROJECT, PROJECT_NAME, ZONE

UBUNTU = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"
TENSORFLOW = "projects/ml-images/global/images/family/tf-2-12-0"
IMAGES = f"projects/{PROJECT}/global/images"
DISKS = f"projects/{PROJECT}/zones/{ZONE}/disks"


def make_disk(engine: Any, name: str = "data", **more: Any) -> None:
    disk = {"name": name, "source_image": UBUNTU, "size_gb": 20, **more}
    engine.wait_ok(engine.disks.insert_unary({**engine.in_zone, "disk_resource": disk}, timeout=60))


def insert(engine: Any, name: str = "copy", *, force: bool = False, **more: Any) -> Any:
    request = {"project": PROJECT, "image_resource": {"name": name, **more}, "force_create": force}
    return engine.images.insert_unary(request, timeout=60)


def make(engine: Any, name: str = "copy", **more: Any) -> Any:
    engine.wait_ok(insert(engine, name, **more))
    return get(engine, name)


def get(engine: Any, name: str = "copy") -> Any:
    return engine.images.get({"project": PROJECT, "image": name}, timeout=60)


def deprecate(engine: Any, name: str, **status: Any) -> None:
    request = {"project": PROJECT, "image": name, "deprecation_status_resource": status}
    engine.wait_ok(engine.images.deprecate_unary(request, timeout=60))


def test_image_of_a_disk(engine: Any) -> None:
    make_disk(engine)
    operation = engine.wait_ok(insert(engine, source_disk=f"zones/{ZONE}/disks/data", family="own"))
    assert operation.target_link == f"{engine.link}{IMAGES}/copy"
    image = get(engine)
    assert (image.disk_size_gb, image.status, image.source_type) == (20, "READY", "RAW")
    assert image.source_disk == f"{engine.link}{DISKS}/data"
    assert image.source_disk_id
    assert image.self_link == f"{engine.link}{IMAGES}/copy"
    assert list(image.storage_locations) == ["eu"]
    ubuntu = {"project": "ubuntu-os-cloud", "family": "ubuntu-2204-lts"}
    original = engine.images.get_from_family(ubuntu, timeout=60)
    assert (image.licenses, image.guest_os_features) == (
        original.licenses,
        original.guest_os_features,
    )
    assert [each.name for each in engine.images.list({"project": PROJECT})] == ["copy"]
    with pytest.raises(exceptions.Conflict):
        insert(engine, source_image=UBUNTU)
    which = {"project": PROJECT, "image": "copy"}
    engine.wait_ok(engine.images.delete_unary(which, timeout=60))
    with pytest.raises(exceptions.NotFound, match=f"The resource '{IMAGES}/copy' was not found"):
        get(engine)


def test_image_of_an_image_and_a_snapshot(engine: Any) -> None:
    feature = {"type_": "MULTI_IP_SUBNET"}
    copy = make(engine, source_image=UBUNTU, guest_os_features=[feature], storage_locations=["us"])
    assert feature["type_"] in [each.type_ for each in copy.guest_os_features]
    assert len(copy.guest_os_features) > 1
    assert list(copy.storage_locations) == ["us"]
    assert "/projects/ubuntu-os-cloud/global/images/ubuntu-2204" in copy.source_image
    assert len(make(engine, "third", source_image=UBUNTU, licenses=["x"]).licenses) == 2
    second = make(engine, "second", source_image="global/images/copy", disk_size_gb=40)
    assert (second.source_image, second.disk_size_gb) == (copy.self_link, 40)
    make_disk(engine)
    body = {**engine.in_zone, "disk": "data", "snapshot_resource": {"name": "saved"}}
    engine.wait_ok(engine.disks.create_snapshot_unary(body, timeout=60))
    restored = make(engine, "restored", source_snapshot="global/snapshots/saved")
    assert restored.source_snapshot == f"{engine.link}projects/{PROJECT}/global/snapshots/saved"
    assert restored.disk_size_gb == 20
    assert restored.licenses == copy.licenses


@pytest.mark.parametrize(
    "sources", [{}, {"source_image": UBUNTU, "source_snapshot": "global/snapshots/saved"}]
)
def test_image_has_one_source(engine: Any, sources: dict[str, Any]) -> None:
    """ansible-collections/google.cloud#378"""
    text = "Invalid resource usage: 'Must specify exactly one source for an image.'"
    with pytest.raises(exceptions.BadRequest, match=text):
        insert(engine, **sources)


def test_missing_sources_and_small_sizes(engine: Any) -> None:
    with pytest.raises(exceptions.BadRequest, match="referenced disk resource cannot be found"):
        insert(engine, source_disk=f"{DISKS}/missing")
    with pytest.raises(exceptions.BadRequest, match="referenced image resource cannot be found"):
        insert(engine, source_image=f"{IMAGES}/missing")
    with pytest.raises(exceptions.NotFound, match="snapshots/missing"):
        insert(engine, source_snapshot="global/snapshots/missing")
    with pytest.raises(exceptions.BadRequest, match="cannot be smaller than the image size"):
        insert(engine, source_image=UBUNTU, disk_size_gb=5)


def test_raw_disks_are_refused_by_name(engine: Any) -> None:
    raw = {"source": "https://storage.googleapis.com/bucket/disk.raw.tar.gz"}
    with pytest.raises(exceptions.MethodNotImplemented, match=r"resource\.rawDisk"):
        insert(engine, raw_disk=raw)


def test_disk_of_a_running_instance_is_copied_by_force(engine: Any) -> None:
    engine.wait_ok(engine.insert(engine.controller()))
    disk = f"{DISKS}/controller"
    with pytest.raises(exceptions.BadRequest, match=f"The disk resource '{disk}' is already being"):
        insert(engine, source_disk=disk)
    make(engine, "forced", source_disk=disk, force=True)
    which = {**engine.in_zone, "instance": "controller"}
    engine.wait_ok(engine.instances.stop_unary(which, timeout=60))
    make(engine, "stopped", source_disk=disk)


def test_instance_runs_what_its_image_was_made_of(engine: Any) -> None:
    make_disk(engine, source_image=TENSORFLOW, size_gb=60)
    body = {**engine.in_zone, "disk": "data", "snapshot_resource": {"name": "saved"}}
    engine.wait_ok(engine.disks.create_snapshot_unary(body, timeout=60))
    make(engine, "first", source_snapshot="global/snapshots/saved")
    make(engine, "second", source_image="global/images/first", family="own")
    machine = engine.controller()
    params = machine["disks"][0]["initialize_params"]
    params |= {"source_image": f"projects/{PROJECT}/global/images/family/own", "disk_size_gb": 60}
    engine.wait_ok(engine.insert(machine))
    spec = engine.cloud.host.specs[f"projects/{PROJECT}/zones/{ZONE}/instances/controller"]
    assert spec.tensorflow == "2.12.0"
    disk = engine.disks.get({**engine.in_zone, "disk": "controller"}, timeout=60)
    assert disk.source_image == f"{engine.link}{IMAGES}/second"


def test_family_is_the_newest_image_that_is_not_deprecated(engine: Any) -> None:
    request = {"project": PROJECT, "family": "own"}
    with pytest.raises(exceptions.NotFound, match=f"'{IMAGES}/family/own' was not found"):
        engine.images.get_from_family(request, timeout=60)
    for name in ("b", "a"):
        make(engine, name, source_image=UBUNTU, family="own")
    assert engine.images.get_from_family(request, timeout=60).name == "a"
    deprecate(engine, "a", state="DEPRECATED", replacement="global/images/b")
    status = get(engine, "a").deprecated
    assert (status.state, status.replacement) == ("DEPRECATED", f"{engine.link}{IMAGES}/b")
    assert engine.images.get_from_family(request, timeout=60).name == "b"
    make_disk(engine, source_image="global/images/a")  # accepted still
    deprecate(engine, "a", state="OBSOLETE")
    with pytest.raises(exceptions.BadRequest, match="OBSOLETE"):
        make_disk(engine, "other", source_image="global/images/a")
    deprecate(engine, "a")
    assert not get(engine, "a").deprecated.state
    assert engine.images.get_from_family(request, timeout=60).name == "a"


def test_image_is_labeled_and_patched(engine: Any) -> None:
    image = make(engine, source_image=UBUNTU, labels={"a": "b"})
    labels = {"labels": {"a": "c"}, "label_fingerprint": image.label_fingerprint}
    request = {"resource": "copy", "global_set_labels_request_resource": labels}
    engine.wait_ok(engine.images.set_labels_unary({"project": PROJECT, **request}, timeout=60))
    with pytest.raises(exceptions.PreconditionFailed):
        engine.images.set_labels_unary({"project": PROJECT, **request}, timeout=60)
    which = {"project": PROJECT, "image": "copy"}
    body = {"image_resource": {"family": "own", "description": "ours"}}
    engine.wait_ok(engine.images.patch_unary({**which, **body}, timeout=60))
    image = get(engine)
    assert (image.labels, image.family, image.description) == ({"a": "c"}, "own", "ours")
    body = {"image_resource": {"licenses": ["x"]}}
    with pytest.raises(exceptions.MethodNotImplemented, match=r"resource\.licenses"):
        engine.images.patch_unary({**which, **body}, timeout=60)


def test_public_images_cannot_be_changed(engine: Any) -> None:
    image = {"name": "copy", "source_image": UBUNTU}
    request = {"project": "ubuntu-os-cloud", "image_resource": image}
    with pytest.raises(exceptions.Forbidden):
        engine.images.insert_unary(request, timeout=60)
    ubuntu = {"project": "ubuntu-os-cloud", "family": "ubuntu-2204-lts"}
    name = engine.images.get_from_family(ubuntu, timeout=60).name
    with pytest.raises(exceptions.Forbidden):
        engine.images.delete_unary({"project": "ubuntu-os-cloud", "image": name}, timeout=60)


def test_images_need_their_permissions(engine: Any, cloud: Any) -> None:
    ann = Member(cloud, "ann")
    path = f"/compute/v1/{IMAGES}"
    body = {"name": "copy", "sourceImage": UBUNTU, "labels": {"a": "b"}}
    refusal = f"'compute.images.create' permission for '{IMAGES}/copy'"
    needs_role(cloud, ann, "roles/compute.storageAdmin", refusal, path, body)


def test_custom_images_are_used_with_permission(engine: Any, cloud: Any) -> None:
    make(engine, source_image=UBUNTU)
    ann = Member(cloud, "ann")
    permissions = ["compute.disks.create", "compute.images.create"]
    role = make_role(cloud, "maker", permissions)
    grant(cloud, PROJECT_NAME, role, ann.name)
    for path, name in ((f"/compute/v1/{DISKS}", "data"), (f"/compute/v1/{IMAGES}", "second")):
        body = {"name": name, "sourceImage": "global/images/copy"}
        status, text = ann.status_and_message("POST", path, json=body)
        needed = f"'compute.images.useReadOnly' permission for '{IMAGES}/copy'"
        assert (status, needed in text) == (403, True), text
        assert ann.send("POST", path, json={**body, "sourceImage": UBUNTU}).ok
    grant(cloud, PROJECT_NAME, "roles/compute.imageUser", ann.name)
    body = {"name": "third", "sourceImage": f"{IMAGES}/copy"}
    assert ann.send("POST", f"/compute/v1/{IMAGES}", json=body).ok
