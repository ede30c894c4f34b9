"""Predefined resources (zones, regions, machine types, images) and operations."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions

from tpuctl import catalog


def test_zones_and_regions(engine: Any) -> None:
    project = {"project": "local-project"}
    zones = {zone.name: zone for zone in engine.zones.list(project)}
    assert set(catalog.zones()) < set(zones)
    zone = engine.zones.get({**project, "zone": "us-central2-b"}, timeout=60)
    assert zone == zones["us-central2-b"]
    assert zone.region.endswith("/projects/local-project/regions/us-central2")
    regions = {region.name: region for region in engine.regions.list(project)}
    assert {zone.region.rpartition("/")[2] for zone in zones.values()} == set(regions)
    assert f"{engine.link}projects/local-project/zones/europe-west4-b" in list(
        regions["europe-west4"].zones
    )
    with pytest.raises(exceptions.NotFound):
        engine.zones.get({**project, "zone": "mars-a"}, timeout=60)
    with pytest.raises(exceptions.NotFound):
        engine.regions.get({**project, "region": "mars"}, timeout=60)


@pytest.mark.parametrize(
    ("name", "cpus", "memory"),
    [
        ("n1-standard-1", 1, 3840),
        ("n1-highmem-8", 8, 53248),
        ("n2-standard-48", 48, 196608),
        ("e2-medium", 2, 4096),
        ("n2-custom-6-10240", 6, 10240),
        ("custom-2-4096", 2, 4096),
        ("e2-custom-4-8192", 4, 8192),
        ("n2-custom-2-32768-ext", 2, 32768),
        ("e2-micro", 2, 1024),
        ("e2-custom-small-3072", 2, 3072),
    ],
)
def test_machine_types(engine: Any, name: str, cpus: int, memory: int) -> None:
    request = {**engine.in_zone, "machine_type": name}
    machine_type = engine.machine_types.get(request)
    assert (machine_type.guest_cpus, machine_type.memory_mb) == (cpus, memory)


def test_machine_type_lists(engine: Any) -> None:
    here = {machine_type.name for machine_type in engine.machine_types.list(engine.in_zone)}
    assert {"n1-standard-1", "e2-standard-2", "n2-highcpu-16"} < here
    with pytest.raises(exceptions.NotFound):
        engine.machine_types.get({**engine.in_zone, "machine_type": "n1-odd-1"}, timeout=60)
    request = {"project": "local-project", "filter": "name=n1-standard-1"}
    everywhere = dict(engine.machine_types.aggregated_list(request))
    assert [machine_type.name for machine_type in everywhere["zones/us-east5-a"].machine_types] == [
        "n1-standard-1"
    ]


# The first three are derived from a TensorFlow version by gcloud's execution_groups/util.py.
@pytest.mark.parametrize(
    ("project", "family"),
    [
        ("ml-images", "tf-2-12-0"),
        ("ml-images", "tf-2-3"),
        ("ml-images", "tf-1-15-5"),
        ("ubuntu-os-cloud", "ubuntu-2204-lts"),
        ("ubuntu-os-cloud", "ubuntu-2404-lts-amd64"),
        ("debian-cloud", "debian-12"),
    ],
)
def test_image_families(engine: Any, project: str, family: str) -> None:
    request = {"project": project, "family": family}
    image = engine.images.get_from_family(request, timeout=60)
    assert (image.family, image.status) == (family, "READY")
    assert image.self_link == f"{engine.link}projects/{project}/global/images/{image.name}"
    by_name = engine.images.get({"project": project, "image": image.name}, timeout=60)
    assert by_name == image
    assert image.name in [item.name for item in engine.images.list({"project": project})]
    view = engine.image_family_views.get({**request, "zone": "-"}, timeout=60)
    assert view.image == image
    # The form of family references in gcloud instances create.
    view_link = f"{engine.link}projects/{project}/zones/-/imageFamilyViews/{family}"
    row = {"name": "d", "source_image": view_link}
    engine.wait_ok(engine.disks.insert_unary({**engine.in_zone, "disk_resource": row}, timeout=60))
    disk = engine.disks.get({**engine.in_zone, "disk": "d"}, timeout=60)
    assert (disk.source_image, disk.size_gb) == (image.self_link, image.disk_size_gb)


def test_every_node_version_has_image(engine: Any) -> None:
    families = {image.family for image in engine.images.list({"project": "ml-images"})}
    expected = {version.version for version in catalog.node_versions() if version.tensorflow}
    assert len(families) == len(expected)
    assert "tf-2-11-1" in families
    request = {"project": "ml-images", "family": "tf-9-9-9"}
    with pytest.raises(exceptions.NotFound):
        engine.images.get_from_family(request)


def test_operations_are_listed_in_scope_of_target(engine: Any) -> None:
    zonal = engine.wait_ok(engine.insert(engine.controller()))
    address = {"name": "a"}
    request = {**engine.in_region, "address_resource": address}
    regional = engine.wait_ok(engine.addresses.insert_unary(request, timeout=60))
    request = {"project": "local-project", "firewall_resource": {"name": "f"}}
    request["firewall_resource"]["allowed"] = [{"I_p_protocol": "tcp"}]
    world = engine.wait_ok(engine.firewalls.insert_unary(request, timeout=60))
    here = list(engine.zone_operations.list(engine.in_zone))
    assert [operation.name for operation in here] == [zonal.name]
    assert engine.zone_operations.get({**engine.in_zone, "operation": zonal.name}) == zonal
    there = list(engine.region_operations.list(engine.in_region))
    assert [operation.name for operation in there] == [regional.name]
    everywhere = engine.global_operations.aggregated_list({"project": "local-project"})
    names_by_scope = {
        scope: [operation.name for operation in part.operations] for scope, part in everywhere
    }
    assert names_by_scope == {
        "zones/europe-west4-a": [zonal.name],
        "regions/europe-west4": [regional.name],
        "global": [world.name],
    }
    with pytest.raises(exceptions.NotFound):
        request = {"project": "local-project", "operation": zonal.name}
        engine.global_operations.get(request, timeout=60)
    engine.zone_operations.delete({**engine.in_zone, "operation": zonal.name})
    with pytest.raises(exceptions.NotFound):
        engine.zone_operations.get({**engine.in_zone, "operation": zonal.name})


@pytest.mark.parametrize("project", ["cos-cloud", "rhel-cloud", "windows-sql-cloud"])
def test_public_projects_without_images_are_empty(engine: Any, project: str) -> None:
    """`gcloud compute images list` queries seventeen projects and warns about rejected ones."""
    listed = list(engine.images.list({"project": project}))
    assert listed == []
    with pytest.raises(exceptions.NotFound):
        engine.images.get({"project": project, "image": "some"})
    with pytest.raises((exceptions.NotFound, exceptions.Forbidden)):
        engine.images.list({"project": "missing-project"})


def test_accelerator_types_are_the_chips_of_machine_types(engine: Any) -> None:
    for zone in ("us-east5-a", "us-central1-f"):
        where = {"project": "local-project", "zone": zone}
        listed = {kind.name: kind for kind in engine.accelerator_types.list(where)}
        chips: dict[str, int] = {}
        for machine_type in engine.machine_types.list(where):
            for accelerator in machine_type.accelerators:
                name, count = (
                    accelerator.guest_accelerator_type,
                    accelerator.guest_accelerator_count,
                )
                chips[name] = max(chips.get(name, 0), count)
        assert {name: kind.maximum_cards_per_instance for name, kind in listed.items()} == chips
        for name, kind in listed.items():
            assert engine.accelerator_types.get({**where, "accelerator_type": name}) == kind
    everywhere = dict(engine.accelerator_types.aggregated_list({"project": "local-project"}))
    names = {kind.name for kind in everywhere["zones/us-east5-a"].accelerator_types}
    assert "ct6e" in names
    with pytest.raises(exceptions.NotFound):
        engine.accelerator_types.get({**engine.in_zone, "accelerator_type": "abacus"}, timeout=60)
