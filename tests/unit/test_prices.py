"""Prices of the catalog against rows quoted from their sources."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tpuctl.catalog import (
    accelerator_type,
    address_price,
    disk_price,
    disk_types,
    machine_is_offered,
    machine_price,
    machine_type,
    machine_types,
    node_price,
    storage_price,
    traffic_price,
)
from tpuctl.cli.main import run

# Cyclenerd/google-cloud-pricing-cost-calculator, pricing.yml at fd66b26f (2026-07-30):
# machine type, region, vCPUs charged, GB, `hour`, `hour_spot`.
MACHINES = [
    ("n1-standard-1", "europe-west4", 1, 3.75, 0.052292, 0.0303825),
    ("n1-highmem-8", "us-central1", 8, 52, 0.473212, 0.166888),
    ("n1-highcpu-16", "southamerica-east1", 16, 14.4, 0.89972, 0.1884352),
    ("e2-micro", "us-central1", 0.25, 1, 0.0083764275, 0.0050265),
    ("e2-small", "europe-west4", 0.5, 2, 0.01844301, 0.008816),
    ("e2-medium", "us-central1", 1, 4, 0.03350571, 0.020106),
    ("e2-standard-32", "asia-northeast1", 32, 128, 1.37545152, 0.825344),
    ("e2-highmem-16", "us-west4", 16, 128, 0.81445392, 0.098048),
    ("n2-standard-8", "us-south1", 8, 32, 0.45839696, 0.102096),
    ("n2-highmem-32", "us-east5", 32, 256, 2.096224, 0.991744),
    ("n2-highcpu-32", "us-east4", 32, 32, 1.292032, 0.295744),
    ("n2d-highmem-16", "asia-south1", 16, 128, 0.60184, 0.329248),
    ("n2d-standard-2", "europe-north1", 2, 8, 0.093026, 0.031456),
]

# skypilot-org/skypilot-catalog, catalogs/v9/gcp/vms.csv at 2c3d7ea7 (mid-2026), the column
# Price; its spot prices are from another day and vary.
MACHINES_OF_SECOND_LIST = [
    ("n2-highmem-4", "asia-east1", 0.3034),
    ("n2-highmem-4", "asia-south1", 0.3147),
    ("n2-highmem-4", "southamerica-west1", 0.3747),
    ("n2-highmem-4", "europe-west1", 0.28824),
    ("n2-highmem-4", "us-west4", 0.29508),
    ("n2-highmem-32", "us-south1", 2.47354),
    ("n2d-highmem-8", "asia-east1", 0.5279),
    ("e2-standard-8", "us-east5", 0.26805),
    ("e2-standard-8", "us-south1", 0.31629),
    ("e2-standard-8", "us-west4", 0.30188),
    ("n1-standard-8", "us-west4", 0.42797),
]

# The same pricing.yml: GB and month of hdd, balanced and ssd.
DISKS = [
    ("us-central1", 0.04, 0.1, 0.17),
    ("europe-west4", 0.044, 0.11, 0.187),
    ("asia-northeast1", 0.052, 0.13, 0.221),
    ("southamerica-west1", 0.0572, 0.143, 0.2431),
    ("us-south1", 0.0472, 0.12, 0.2006),
]

# cloud.google.com/storage/pricing, standard storage in the tables of regions; multi-regions
# there are $0.000035616 for a GiB and hour.
STORAGE = [
    ("us-central1", 0.020),
    ("us-east4", 0.023),
    ("us-west4", 0.023),
    ("us-south1", 0.020),
    ("northamerica-northeast1", 0.023),
    ("europe-north1", 0.020),
    ("europe-west1", 0.020),
    ("US", 0.000035616 * 730),
    ("EUROPE-WEST4", 0.020),
]

# The same page, data transfer within Google Cloud, by locations of bucket and destination.
TRAFFIC = [
    ("us-central1", "us-west4", 0.02),
    ("northamerica-northeast1", "us-central2", 0.02),
    ("us-central1", "europe-west4", 0.05),
    ("europe-west4", "us-east5", 0.05),
    ("europe-west4", "europe-north1", 0.02),
    ("asia-east1", "asia-northeast1", 0.08),
    ("europe-west1", "asia-south1", 0.08),
    ("us-east1", "southamerica-west1", 0.14),
    ("southamerica-east1", "southamerica-west1", 0.14),
    ("asia-southeast2", "asia-southeast1", 0.10),
    ("asia-southeast2", "australia-southeast1", 0.08),
    ("me-west1", "europe-west4", 0.11),
    ("africa-south1", "australia-southeast1", 0.14),
    ("europe-west4", "internet", 0.12),
    # "A region is not considered the same location as a multi-region, even if the region is
    # within the geographic limits of a multi-region."
    ("US", "us-central1", 0.02),
    ("EU", "europe-west4", 0.02),
    # "Accessing data in an NAM4 bucket with an US-CENTRAL1 GKE instance" is free.
    ("NAM4", "us-central1", 0.0),
    ("NAM4", "us-west1", 0.02),
    ("us-east1", "us-east1", 0.0),
]


@pytest.mark.parametrize(("name", "region", "vcpus", "memory", "hour", "spot"), MACHINES)
def test_machine_prices_match_list(
    name: str, region: str, vcpus: float, memory: float, hour: float, spot: float
) -> None:
    machine = machine_type(name)
    assert machine is not None
    assert (machine.charged_vcpus, machine.memory_gb) == (vcpus, memory)
    demand, floating = machine_price(machine, region), machine_price(machine, region, spot=True)
    assert demand is not None and floating is not None
    assert demand.per_hour == pytest.approx(hour, abs=1e-9)
    assert floating.per_hour == pytest.approx(spot, abs=1e-9)
    assert (demand.is_spot, floating.is_spot, demand.read) == (False, True, "mid-2026")


@pytest.mark.parametrize(("name", "region", "hour"), MACHINES_OF_SECOND_LIST)
def test_on_demand_prices_match_second_list(name: str, region: str, hour: float) -> None:
    machine = machine_type(name)
    assert machine is not None
    price = machine_price(machine, region)
    assert price is not None
    assert price.per_hour == pytest.approx(hour, abs=0.000006)  # five decimals there


def test_machine_shapes() -> None:
    assert {"n1-standard-1", "n1-standard-32", "e2-highmem-16", "n2d-highmem-32"} <= set(
        machine_types()
    )
    assert "e2-highmem-32" not in machine_types()  # e2 ends at 128 GB
    medium = machine_type("e2-medium")
    assert medium is not None
    assert (medium.family, medium.vcpus) == ("e2", 2)


@pytest.mark.parametrize("region", ["us-east5", "us-south1", "southamerica-west1"])
def test_n1_is_not_offered_everywhere(region: str) -> None:
    n1, n2 = machine_type("n1-standard-1"), machine_type("n2-standard-2")
    assert n1 is not None and n2 is not None
    assert not machine_is_offered(n1, region)
    assert machine_price(n1, region) is None
    assert machine_is_offered(n2, region)
    assert machine_price(n2, region) is not None


@pytest.mark.parametrize(("region", "standard", "balanced", "ssd"), DISKS)
def test_disk_prices_match_list(region: str, standard: float, balanced: float, ssd: float) -> None:
    expected = {"pd-standard": standard, "pd-balanced": balanced, "pd-ssd": ssd}
    for kind, amount in expected.items():
        rate = disk_price(kind, region)
        assert rate is not None
        assert (rate.amount, rate.per, rate.is_general) == (amount, "GB per month", False)


def test_general_and_unpublished_prices() -> None:
    rate = disk_price("hyperdisk-balanced", "europe-west4")
    assert rate is not None
    assert (rate.amount, rate.is_general) == (0.08, True)
    assert "hyperdisk-balanced" in disk_types()
    assert address_price().per_hour == 0.005
    assert address_price(spot=True).per_hour == 0.0025
    machine = machine_type("n2-standard-2")
    assert machine is not None
    assert machine_price(machine, "us-central2") is None
    assert disk_price("pd-standard", "us-central2") is None
    assert disk_price("hyperdisk-balanced", "us-central2") is None
    assert disk_price("pd-extreme", "us-central1") is None
    assert storage_price("us-central2") is None
    assert traffic_price("northamerica-south1", "us-central1") is None
    assert traffic_price("moon-north1", "us-central1") is None
    assert traffic_price("asia-southeast2", "ASIA-SOUTHEAST2") is not None
    assert machine_type("n1-standard-64") is None


@pytest.mark.parametrize(("location", "amount"), STORAGE)
def test_storage_prices_match_page(location: str, amount: float) -> None:
    rate = storage_price(location)
    assert rate is not None
    assert rate.amount == pytest.approx(amount, abs=0.00001)
    assert rate.per == "GB per month"


@pytest.mark.parametrize(("origin", "destination", "amount"), TRAFFIC)
def test_traffic_prices_match_page(origin: str, destination: str, amount: float) -> None:
    rate = traffic_price(origin, destination)
    assert rate is not None
    assert rate.amount == amount


def price(name: str, zone: str, **keywords: Any) -> float | None:
    accelerator = accelerator_type(name)
    assert accelerator is not None
    price = node_price(accelerator, zone, **keywords)
    return None if price is None else pytest.approx(price.per_hour, abs=1e-9)


def test_node_price_is_per_chip() -> None:
    # vms.csv of skypilot-catalog: 2.2 and 0.561 a chip of v3-8 in europe-west4-a; 4 chips.
    assert price("v3-8", "europe-west4-a") == 8.8
    assert price("v3-8", "europe-west4-a", spot=True) == 2.244
    assert price("v3-8", "europe-west4-a", capacity="spot") == 2.244
    assert price("v3-8", "europe-west4-a", capacity="preemptible") == 2.244
    assert price("v3-8", "europe-west4-a", capacity="reserved") == 8.8
    assert price("v3-8", "us-east1-d", spot=True) is None
    assert price("v3-8", "us-west4-a") is None
    # 1.35 a chip of v6e in europe-west4, 0.6 of v5e in us-west4, third party, 2026-08-11.
    assert price("v6e-8", "europe-west4-a", capacity="flex-start") == 10.8
    assert price("v5litepod-4", "us-west4-a", capacity="flex-start") == 2.4
    assert price("v6e-8", "us-central1-a", capacity="flex-start") is None
    assert price("v6e-8", "us-east5-z", capacity="flex-start") is None
    assert price("v5p-8", "us-east5-a", capacity="flex-start") is None


@pytest.mark.parametrize(
    ("capacity", "text"),
    [
        ("on-demand", "$11.88/h (on demand, prices of mid-2026)"),
        ("spot", "$7.13/h (spot, floats, prices of mid-2026)"),
        ("reserved", "$11.88/h (reserved, at most, prices of mid-2026)"),
        ("flex-start", "$5.40/h (flex-start, prices of 2026-08-11)"),
    ],
)
def test_price_text_has_kind_and_date(capacity: Any, text: str) -> None:
    accelerator = accelerator_type("v6e-4")  # 2.97, spot 1.782, flex-start 1.35 a chip
    assert accelerator is not None
    assert str(node_price(accelerator, "europe-west4-a", capacity=capacity)) == text


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["data"]


def test_prices_of_machines_and_flex_start(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, "prices", "--machines", "--zone", "europe-west4-a")
    row = next(row for row in data["machines"] if row["machine_type"] == "n1-standard-1")
    assert (row["vcpus"], row["memory_gb"], row["region"]) == (1, 3.75, "europe-west4")
    assert row["on_demand"] == pytest.approx(0.052292, abs=1e-9)
    assert row["spot"] == pytest.approx(0.0303825, abs=1e-9)
    assert run(["prices", "--machines", "--region", "us-east5"]) == 0
    assert "n1-" not in capsys.readouterr().out
    data = answer(capsys, "prices", "--machines")
    rows = {row["machine_type"]: row for row in data["machines"]}
    assert set(rows) == set(machine_types())
    # 16 * 0.018151 + 128 * 0.002433 in Mumbai, less than anywhere else.
    assert rows["n2d-highmem-16"]["region"] == "asia-south1"
    (row,) = answer(capsys, "prices", "v6e-8", "--zone", "europe-west4-a")["prices"]
    assert (row["zone"], row["flex_start"]) == ("europe-west4-a", pytest.approx(10.8))


def test_prices_of_disks_and_storage(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, "prices", "--disks")
    rows = {row["region"]: row for row in data["disks"]}
    assert rows["us-south1"]["pd-ssd"] == 0.2006
    assert rows["us-central2"]["pd-standard"] is None
    assert data["general"] == ["hyperdisk-balanced"]
    data = answer(capsys, "prices", "--storage", "--region", "europe-west4")
    first = {row["location"] for row in data["storage"][:2]}
    assert first == {"europe-west4", "eur4"}  # where reading is free
    assert run(["prices", "--storage", "--region", "europe-west4"]) == 0
    assert "per GB read from europe-west4" in capsys.readouterr().out
