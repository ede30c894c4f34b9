"""What Compute Engine sells of TPUs, against Google's documents."""

from __future__ import annotations

import pytest

from tpuctl.catalog import (
    AcceleratorType,
    accelerator_type,
    accelerator_types,
    announced_tpu,
    apis_of,
    calendar_zones,
    flex_start_zones,
    host_architecture,
    is_tpu_machine,
    node_price,
    topologies_of,
    tpu_machine,
    tpu_machine_type,
    zones_of,
)


def type_named(name: str) -> AcceleratorType:
    accelerator = accelerator_type(name)
    assert accelerator is not None
    return accelerator


@pytest.mark.parametrize(
    ("name", "hosts", "machine_type", "vcpus", "memory_gb", "boot_disk"),
    [
        ("v5p-2", 1, "ct5p-hightpu-1t-tpu", 52, 112, "pd-balanced"),
        ("v5p-4", 1, "ct5p-hightpu-2t-tpu", 104, 224, "pd-balanced"),
        ("v5p-8", 1, "ct5p-hightpu-4t", 208, 448, "pd-balanced"),
        ("v5p-32", 4, "ct5p-hightpu-4t", 208, 448, "pd-balanced"),
        ("v6e-1", 1, "ct6e-standard-1t", 44, 176, "hyperdisk-balanced"),
        ("v6e-8", 1, "ct6e-standard-8t", 180, 1440, "hyperdisk-balanced"),
        ("v6e-16", 4, "ct6e-standard-4t", 180, 720, "hyperdisk-balanced"),
        ("tpu7x-8", 1, "tpu7x-standard-4t", 224, 960, "hyperdisk-balanced"),
        ("tpu7x-128", 16, "tpu7x-standard-4t", 224, 960, "hyperdisk-balanced"),
    ],
)
def test_types_consist_of_documented_machines(
    name: str, hosts: int, machine_type: str, vcpus: int, memory_gb: int, boot_disk: str
) -> None:
    machine = tpu_machine(type_named(name))
    assert machine is not None
    assert (machine.machine_type, machine.hosts) == (machine_type, hosts)
    assert machine.chips * machine.hosts == type_named(name).chips
    assert machine.boot_disks[0] == boot_disk
    host = tpu_machine_type(machine_type)
    assert host is not None
    assert (host.vcpus, host.memory_gb) == (vcpus, memory_gb)


def test_generations_are_sold_by_documented_apis() -> None:
    """docs.cloud.google.com/compute/docs/tpus/tpu-resources-in-compute-engine."""
    apis = {
        generation: {
            api
            for accelerator in accelerator_types().values()
            if accelerator.generation == generation
            for api in apis_of(accelerator)
        }
        for generation in ("v4", "v5e", "v5p", "v6e", "tpu7x")
    }
    both = {"tpu", "compute"}
    assert apis == {"v4": {"tpu"}, "v5e": {"tpu"}, "v5p": both, "v6e": both, "tpu7x": {"compute"}}
    assert apis_of(type_named("v5p-2")) == ("compute",), "its smallest type has four chips"
    assert not is_tpu_machine("ct5lp-hightpu-4t"), "GKE's alone"
    assert is_tpu_machine("ct6e-standard-4t-tpu")


def test_topologies_have_chips_of_type_and_hosts_are_x86() -> None:
    assert topologies_of(type_named("v6e-16")) == ("4x4",)
    assert topologies_of(type_named("v5p-32")) == ("2x2x4",)
    assert topologies_of(type_named("tpu7x-256")) == ("4x4x8",)
    assert topologies_of(type_named("v5p-1024")) == ("8x8x8", "4x4x32", "4x8x16")
    assert topologies_of(type_named("v5p-384")) == ("4x4x12",), "no 4x6x8: not of whole cubes"
    assert {host_architecture(each) for each in accelerator_types().values()} == {"x86_64"}
    assert announced_tpu("v6e-8") is None
    assert announced_tpu("v80-8") is None


def test_zone_of_compute_engine_alone_has_price_of_its_region() -> None:
    accelerator = type_named("v5p-8")
    assert "europe-west1-c" in zones_of(accelerator, "compute")
    assert "europe-west1-c" not in zones_of(accelerator, "tpu")
    price, other = (node_price(accelerator, f"europe-west1-{letter}") for letter in "cb")
    assert price is not None
    assert price == other
    assert node_price(accelerator, "us-central1-b") is None, "not offered there"


def test_flex_start_and_calendar_mode_are_of_few_zones() -> None:
    assert flex_start_zones(type_named("tpu7x-8")) == ("us-central1-c",)
    assert flex_start_zones(type_named("v5p-2"), "tpu") == ()
    assert "southamerica-west1-a" in flex_start_zones(type_named("v6e-8"), "tpu")
    assert "us-south1-ai1b" in flex_start_zones(type_named("v6e-8"), "compute")
    assert "us-south1-ai1b" not in flex_start_zones(type_named("v6e-8"), "tpu")
    assert calendar_zones(type_named("v5p-8")) == ("us-east5-a",)
    assert calendar_zones(type_named("v4-8")) == ()
    for accelerator in accelerator_types().values():
        assert set(calendar_zones(accelerator)) <= set(zones_of(accelerator))


@pytest.mark.parametrize("name", ["tpu8t-16", "TPU8i-4", "v8t-8", "v8-32", "tpu8"])
def test_announced_generations_are_known_by_name(name: str) -> None:
    announced = announced_tpu(name)
    assert announced is not None
    assert announced.architecture == "aarch64"
    assert "not sold yet" in str(announced)
