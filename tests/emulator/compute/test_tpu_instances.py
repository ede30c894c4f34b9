"""Instances with TPU chips, as Compute Engine sells them."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions

from tests.support.locations import PROJECT, V5P_ZONE
from tests.support.tpu_instances import TPU7X_IMAGE, V6E, V6E_IMAGE, WHICH, tpu_instance


@pytest.mark.parametrize(
    ("machine_type", "zone", "image", "accelerator"),
    [
        ("ct6e-standard-1t", V5P_ZONE, V6E_IMAGE, "v6e-1"),
        ("ct6e-standard-4t", V5P_ZONE, V6E_IMAGE, "v6e-4"),
        ("ct6e-standard-8t", V5P_ZONE, V6E_IMAGE, "v6e-8"),
        ("ct5p-hightpu-1t-tpu", V5P_ZONE, V6E_IMAGE, "v5p-2"),
        ("ct5p-hightpu-4t", V5P_ZONE, V6E_IMAGE, "v5p-8"),
        ("tpu7x-standard-4t", "us-central1-c", TPU7X_IMAGE, "tpu7x-8"),
    ],
)
def test_instance_is_a_tpu(
    engine: Any, machine_type: str, zone: str, image: str, accelerator: str
) -> None:
    request = tpu_instance(machine_type, zone=zone, image=image)
    engine.wait_ok(engine.instances.insert_unary(request, timeout=60))
    key = {"project": PROJECT, "zone": zone}
    disk = engine.disks.get({**key, "disk": "bert-tpu"}, timeout=60)
    assert disk.size_gb == 10
    instance = engine.instances.get({**key, "instance": "bert-tpu"}, timeout=60)
    assert instance.status == "RUNNING"
    spec = engine.cloud.host.specs[f"projects/{PROJECT}/zones/{zone}/instances/bert-tpu"]
    assert (spec.kind, spec.machine_type) == ("instance", machine_type)
    assert (spec.accelerator_type, spec.worker, len(spec.endpoints)) == (accelerator, 0, 1)


def test_machine_types_of_a_zone_include_its_tpus(engine: Any) -> None:
    key = {"project": PROJECT, "zone": V5P_ZONE}
    here = {kind.name: kind for kind in engine.machine_types.list(key)}
    assert {"ct5p-hightpu-4t", "ct6e-standard-4t", "ct5lp-hightpu-1t"} < set(here)
    assert "tpu7x-standard-4t" not in here
    (chips,) = here["ct6e-standard-8t"].accelerators
    assert (chips.guest_accelerator_type, chips.guest_accelerator_count) == ("ct6e", 8)
    (chips,) = here["ct5p-hightpu-1t-tpu"].accelerators
    assert (chips.guest_accelerator_type, chips.guest_accelerator_count) == ("tpu-v5p", 1)
    with pytest.raises(exceptions.NotFound):
        engine.machine_types.get({**engine.in_zone, "machine_type": "tpu7x-standard-4t"})
    request = {"project": PROJECT, "filter": "name=tpu7x-standard-4t"}
    everywhere = dict(engine.machine_types.aggregated_list(request))
    zones = {place for place, part in everywhere.items() if part.machine_types}
    assert zones == {"zones/us-central1-c", "zones/us-central1-ai1a"}


def test_machine_type_that_the_zone_lacks_is_refused(engine: Any) -> None:
    request = tpu_instance("tpu7x-standard-4t")
    text = "Machine type with name 'tpu7x-standard-4t' does not exist in zone 'us-east5-a'."
    with pytest.raises(exceptions.BadRequest, match=text):
        engine.instances.insert_unary(request)


def test_machine_types_of_gke_are_not_sold_as_instances(engine: Any) -> None:
    request = tpu_instance("ct5lp-hightpu-1t")
    text = r"This user agent is not allowed to use the machine type \[ct5lp-hightpu-1t\]\."
    with pytest.raises(exceptions.Forbidden, match=text):
        engine.instances.insert_unary(request)


def test_disk_types_that_the_machine_lacks_are_refused(engine: Any) -> None:
    for machine_type, disk in ((V6E, "pd-balanced"), ("ct5p-hightpu-4t", "hyperdisk-balanced")):
        text = f"{disk} disk type cannot be used by {machine_type} machine type."
        with pytest.raises(exceptions.BadRequest, match=text):
            request = tpu_instance(machine_type, disk=disk)
            engine.instances.insert_unary(request)
    request = tpu_instance(disk="hyperdisk-balanced")
    engine.wait_ok(engine.instances.insert_unary(request))


def test_boot_disk_has_a_type_that_the_machine_supports_by_default(engine: Any) -> None:
    request = tpu_instance()
    engine.wait_ok(engine.instances.insert_unary(request))
    which = {"project": PROJECT, "zone": V5P_ZONE, "disk": "bert-tpu"}
    disk = engine.disks.get(which)
    assert disk.type_.endswith("/hyperdisk-balanced")


def test_attached_disks_must_fit_the_machine(engine: Any) -> None:
    key = {"project": PROJECT, "zone": V5P_ZONE}

    engine.wait_ok(engine.instances.insert_unary(tpu_instance(), timeout=60))
    for name, kind in (("fits", "hyperdisk-ml"), ("other", "pd-ssd")):
        disk = {"name": name, "size_gb": 10, "type_": f"zones/{V5P_ZONE}/diskTypes/{kind}"}
        engine.wait_ok(engine.disks.insert_unary({**key, "disk_resource": disk}, timeout=60))
    request = {**WHICH, "attached_disk_resource": {"source": f"zones/{V5P_ZONE}/disks/fits"}}
    engine.wait_ok(engine.instances.attach_disk_unary(request, timeout=60))
    request = {**WHICH, "attached_disk_resource": {"source": f"zones/{V5P_ZONE}/disks/other"}}
    text = "pd-ssd disk type cannot be used by ct6e-standard-4t machine type."
    with pytest.raises(exceptions.BadRequest, match=text):
        engine.instances.attach_disk_unary(request, timeout=60)
