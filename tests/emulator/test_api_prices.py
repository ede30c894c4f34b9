"""Cloud Billing's catalog of prices, through the official client."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import billing_v1

TPU, COMPUTE = "services/E000-3F24-B8AA", "services/6F81-5844-456A"

both = pytest.mark.parametrize("transport", ["grpc", "rest"])


def prices(cloud: Any, transport: str = "grpc") -> Any:
    return cloud.client(billing_v1.CloudCatalogClient, transport)


def rate(sku: Any) -> float:
    (info,) = sku.pricing_info
    (tier,) = info.pricing_expression.tiered_rates
    assert info.pricing_expression.usage_unit == "h"
    return float(tier.unit_price.units + tier.unit_price.nanos / 1e9)


@both
def test_services_that_charge_for_tpus(cloud: Any, transport: str) -> None:
    services = {
        service.name: service for service in prices(cloud, transport).list_services(timeout=60)
    }
    assert {TPU, COMPUTE} <= set(services)
    assert services[TPU].display_name == "Cloud TPU"
    assert services[COMPUTE].service_id == "6F81-5844-456A"


@both
def test_skus_match_real_catalog_samples(cloud: Any, transport: str) -> None:
    """Description, usage type and price from public tests; see billing/catalog.py."""

    client = prices(cloud, transport)
    skus = {sku.description: sku for sku in client.list_skus(parent=COMPUTE, timeout=60)}
    quoted = {
        "TpuV6e running in Columbus": ("us-east5", "OnDemand", 2.7),
        "TpuV6e running in Dallas": ("us-south1", "OnDemand", 2.7),
        "TpuV6e running in Tokyo": ("asia-northeast1", "OnDemand", 3.24),
        "DWS Defined Duration V6e running in Columbus": ("us-east5", "OnDemand", 1.35),
        "TpuV5e attached to Spot Preemptible VMs running in Singapore": (
            *("asia-southeast1", "Preemptible", 0.78),
        ),
        "TPU7x running in Americas": ("us-central1", "OnDemand", 12.0),
    }
    for text, (region, usage, price) in quoted.items():
        sku = skus[text]
        assert region in sku.service_regions
        assert (sku.category.resource_group, sku.category.usage_type) == ("TPU", usage)
        assert rate(sku) == pytest.approx(price, abs=1e-9), text
    commitment = skus["Commitment v1: TpuV6e running in Columbus for 3 Years"]
    assert commitment.category.usage_type == "Commit3Yr"
    old = {sku.description: sku for sku in client.list_skus(parent=TPU, timeout=60)}
    usa = old["TPU-v2 Accelerator USA"]
    assert (usa.sku_id, list(usa.service_regions)) == ("3B3D-4CB4-AECC", ["us-central1"])
    assert rate(usa) == 4.5, "of eight cores"


def test_skus_are_listed_once_across_pages(cloud: Any) -> None:
    client = prices(cloud)
    all_names = [sku.name for sku in client.list_skus(parent=COMPUTE, timeout=60)]
    assert len(all_names) == len(set(all_names)) > 50
    pager = client.list_skus(request={"parent": COMPUTE, "page_size": 7}, timeout=60)
    assert len(pager.skus) == 7
    assert [sku.name for sku in pager] == all_names
    assert client.list_services(request={"page_size": 1}, timeout=60).next_page_token


def test_unknown_service_and_currency_are_rejected(cloud: Any) -> None:
    client = prices(cloud)
    with pytest.raises(exceptions.NotFound):
        client.list_skus(parent="services/0000-0000-0000", timeout=60)
    request = {"parent": TPU, "currency_code": "EUR"}
    with pytest.raises(exceptions.InvalidArgument, match="EUR"):
        client.list_skus(request=request, timeout=60)
