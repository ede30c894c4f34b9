"""The interpretation of Google's SKUs, with rows quoted from public tests and programs."""

from __future__ import annotations

from typing import Any

import pytest

from tpuctl.catalog import Capacity, accelerator_type
from tpuctl.model.cost.price_list import COMPUTE_ENGINE, TPU_SERVICE, PriceList, Sku, service_of


def sku(text: str, usage: str, price: float, *regions: str, **more: Any) -> Sku:
    service = more.pop("service", COMPUTE_ENGINE)
    return Sku(service, text, usage, regions or ("us-east5",), more.pop("unit", "h"), price)


# us-east5 on 2026-08-07, with other SKUs of the same chip, four of them OnDemand too.
COLUMBUS = [
    sku("TpuV6e running in Columbus", "OnDemand", 2.70),
    sku("DWS Defined Duration V6e running in Columbus", "OnDemand", 1.35),
    sku("TpuV6e attached to Spot Preemptible VMs running in Columbus", "Preemptible", 1.4033),
    sku("Capacity Optimized TpuV6e running in Columbus", "OnDemand", 2.80),
    sku("Reserved V6e TPU in Columbus in Calendar Mode", "OnDemand", 1.89),
    sku("Reserved TpuV6e in Columbus in Calendar Mode", "OnDemand", 1.88),
    sku("Commitment v1: TpuV6e running in Columbus for 1 Year", "Commit1Yr", 1.89),
    sku("TpuV6e running in Tokyo", "OnDemand", 3.24, "asia-northeast1"),
    sku("TPU7x running in Americas", "OnDemand", 12.0, "us-west1", "us-central1", "us-east1"),
]
OLD = [
    sku("TPU-v2 Accelerator USA", "OnDemand", 4.5, "us-central1", service=TPU_SERVICE),
    sku("Tpu-v4 Pod Accelerator USA", "OnDemand", 12.88, "us-central2", service=TPU_SERVICE),
    sku("Preemptible Tpu-v3 Pod", "OnDemand", 2.4, "us-east1", service=TPU_SERVICE),
    sku("Tpu-v3 Pod", "OnDemand", 8.0, "us-east1", service=TPU_SERVICE),
    sku("Tpu-v3 Accelerator", "Preemptible", 2.04, "us-east1", service=TPU_SERVICE),
]


def price(skus: list[Sku], name: str, zone: str, capacity: Capacity = "on-demand") -> float | None:
    accelerator = accelerator_type(name)
    assert accelerator is not None
    price = PriceList(skus, "2026-11-22").price(accelerator, zone, capacity)
    assert price is None or (price.read, price.capacity) == ("2026-11-22", capacity)
    return None if price is None else pytest.approx(price.per_hour, abs=1e-9)


def test_types_are_charged_per_chip_or_eight_cores() -> None:
    assert price(COLUMBUS, "v6e-8", "us-east5-a") == 8 * 2.70
    assert price(COLUMBUS, "v6e-1", "us-east5-b", "spot") == 1.4033
    assert price(COLUMBUS, "v6e-16", "us-east5-a", "flex-start") == 16 * 1.35
    assert price(COLUMBUS, "v6e-4", "asia-northeast1-b") == 4 * 3.24
    assert price(COLUMBUS, "tpu7x-8", "us-central1-c") == 4 * 12.0
    assert price(OLD, "v2-8", "us-central1-b") == 4.5
    assert price(OLD, "v4-32", "us-central2-b") == 4 * 12.88
    assert price(OLD, "v3-32", "us-east1-d") == 4 * 8.0
    assert price(OLD, "v3-32", "us-east1-d", "spot") == 4 * 2.4
    assert price(OLD, "v3-8", "us-east1-d", "spot") == 2.04
    assert price(OLD, "v3-8", "us-east1-d") is None, "a pod's price does not apply to a device"
    assert price(OLD, "v2-32", "us-central1-a") is None
    again = sku("TpuV6e running in Ohio", "OnDemand", 2.71)
    assert price([*COLUMBUS, again], "v6e-8", "us-east5-a") is None
    assert price([*COLUMBUS, COLUMBUS[0]], "v6e-8", "us-east5-a") == 8 * 2.70, "listed twice"


@pytest.mark.parametrize(
    "doubtful",
    [
        sku("Capacity Optimized TpuV6e running in Columbus", "OnDemand", 2.70),
        sku("Reserved TpuV6e in Columbus in Calendar Mode", "OnDemand", 1.89),
        sku("Commitment v1: TpuV6e running in Columbus for 3 Years", "Commit3Yr", 1.9),
        sku("TpuV6e running in Columbus", "Commit1Yr", 1.9),
        sku("TpuV6e running in Columbus", "OnDemand", 0.0),
        sku("TpuV6e running in Columbus", "OnDemand", 2.70, unit="GiBy.h"),
        sku("TpuV6e running in Dallas", "OnDemand", 2.70, "us-south1"),
        sku("TpuV6e running in Columbus", "OnDemand", 2.70, service=TPU_SERVICE),
        sku("TpuV6x running in Columbus", "OnDemand", 2.70),
    ],
)
def test_ambiguous_sku_has_no_price(doubtful: Sku) -> None:
    assert price([doubtful], "v6e-8", "us-east5-a") is None


def test_service_of_type() -> None:
    services = {}
    for name in ("v2-8", "v3-32", "v4-8", "v5litepod-1", "v5p-8", "v6e-1", "tpu7x-8"):
        accelerator = accelerator_type(name)
        assert accelerator is not None
        services[name] = service_of(accelerator)
    assert {name for name, service in services.items() if service == TPU_SERVICE} == {
        *("v2-8", "v3-32", "v4-8"),
    }
