"""Cloud Billing's catalog, v1: the services and SKUs of TPU usage.

Prices come from tpuctl's catalog; the shapes are those that public programs read:

- Compute Engine (6F81-5844-456A) has v5e, v5p, v6e and tpu7x by chip and hour, one SKU per
  region: `TpuV6e running in Columbus`, `TpuV6e attached to Spot Preemptible VMs running in
  Columbus` of usage type Preemptible, `DWS Defined Duration V6e running in Columbus` for
  flex-start. The same chips also have SKUs with other prices:
  `Capacity Optimized TpuV6e running in …`, `Reserved TpuV5p in … in Calendar Mode`,
  `Commitment v1: TpuV5p running in … for 3 Years`. TPU7x has one SKU for several regions,
  `TPU7x running in Americas`. From rows of the real catalog that public tests quote (2026-06-14
  and 2026-08-07).
- Cloud TPU (E000-3F24-B8AA) has v2, v3 and v4 by eight TensorCores and hour: `TPU-v2 Accelerator
  USA`, `Tpu-v4 Pod Accelerator USA` (public listings), and preemptible ones of usage type OnDemand
  whose description says so (skypilot, fetch_gcp.py). The "Preemptible" suffix is a guess.

Location names, and all SKU ids except that of `TPU-v2 Accelerator USA`, are invented; prices that
tpuctl never shows are a fixed multiple of the on-demand price.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from google.cloud.billing_v1.types import cloud_catalog as messages

from tpuctl import catalog
from tpuctl.emulator.state.errors import invalid, missing
from tpuctl.emulator.wire.paging import name_of, requested_page
from tpuctl.emulator.wire.registry import Caller, Service

TPU = "E000-3F24-B8AA"
COMPUTE = "6F81-5844-456A"
SERVICES = {TPU: "Cloud TPU", COMPUTE: "Compute Engine"}
CHIP_TITLES = {"v5e": "V5e", "v5p": "V5p", "v6e": "V6e", "tpu7x": "7x"}
CORES_PER_DEVICE = 8
MAX_PAGE_SIZE = 5000  # SKUs per page, from the method's description
EFFECTIVE_SINCE = datetime(2026, 6, 1, tzinfo=UTC)  # arbitrary: catalogs do not date their prices
KNOWN_IDS = {"TPU-v2 Accelerator USA": "3B3D-4CB4-AECC"}
LOCATION_NAMES = {
    "asia-east1": "Taiwan",
    "asia-northeast1": "Tokyo",
    "asia-south1": "Mumbai",
    "asia-southeast1": "Singapore",
    "europe-north1": "Finland",
    "europe-west1": "Belgium",
    "europe-west3": "Frankfurt",
    "europe-west4": "Netherlands",
    "northamerica-northeast1": "Montreal",
    "southamerica-east1": "Sao Paulo",
    "southamerica-west1": "Santiago",
    "us-central1": "Iowa",
    "us-central2": "Oklahoma",
    "us-east1": "South Carolina",
    "us-east4": "Northern Virginia",
    "us-east5": "Columbus",
    "us-south1": "Dallas",
    "us-west1": "Oregon",
    "us-west4": "Las Vegas",
}
# By price class of tpuctl's catalog: the older service's title.
DEVICE_TITLES = {
    "v2-8": "TPU-v2 Accelerator",
    "v2-pod": "Tpu-v2 Pod Accelerator",
    "v3-8": "Tpu-v3 Accelerator",
    "v3-pod": "Tpu-v3 Pod Accelerator",
    "v4": "Tpu-v4 Pod Accelerator",
}


class PriceListService(Service):
    """Handlers of google.cloud.billing.v1.CloudCatalog."""

    async def list_services(self, request: Any, caller: Caller) -> Any:
        rows, token = requested_page(request, sorted(SERVICES), max_size=MAX_PAGE_SIZE)
        return messages.ListServicesResponse.pb()(
            services=[
                messages.Service.pb()(
                    name=f"services/{service_id}",
                    service_id=service_id,
                    display_name=SERVICES[service_id],
                    business_entity_name="businessEntities/GCP",
                )
                for service_id in rows
            ],
            next_page_token=token,
        )

    async def list_skus(self, request: Any, caller: Caller) -> Any:
        """All SKUs of a service, in US dollars only."""
        kind, _, service = request.parent.partition("/")
        if kind != "services" or service not in SERVICES:
            raise missing(f"Service '{request.parent}' not found.")
        if request.currency_code not in ("", "USD"):
            raise invalid(f"Currency {request.currency_code} is not supported by the local cloud.")
        rows, token = requested_page(request, _skus(service), max_size=MAX_PAGE_SIZE)
        return messages.ListSkusResponse.pb()(skus=rows, next_page_token=token)


@cache
def _skus(service: str) -> Sequence[Any]:
    skus = _device_skus() if service == TPU else _chip_skus()
    return sorted(skus, key=name_of)


def _device_skus() -> Iterator[Any]:
    for price_class, title in DEVICE_TITLES.items():
        for region, (demand, spot) in _prices_by_region(price_class).items():
            chips = CORES_PER_DEVICE // 2  # two TensorCores per chip
            location = "USA" if region == "us-central1" else LOCATION_NAMES[region]
            yield _sku(TPU, f"{title} {location}", "OnDemand", [region], demand * chips)
            text = f"{title} {location} Preemptible"
            yield _sku(TPU, text, "OnDemand", [region], spot * chips)


def _chip_skus() -> Iterator[Any]:
    for price_class, title in CHIP_TITLES.items():
        by_region = _prices_by_region(price_class)
        if price_class == "tpu7x":
            (price,) = {demand for demand, _ in by_region.values()}
            yield _sku(COMPUTE, "TPU7x running in Americas", "OnDemand", list(by_region), price)
            continue
        for region, (demand, spot) in by_region.items():
            location, chip = LOCATION_NAMES[region], f"Tpu{title}"
            yield from (
                _sku(COMPUTE, f"{text} {location}{end}", usage, [region], price)
                for text, end, usage, price in (
                    (f"{chip} running in", "", "OnDemand", demand),
                    (
                        f"{chip} attached to Spot Preemptible VMs running in",
                        "",
                        "Preemptible",
                        spot,
                    ),
                    (
                        f"DWS Defined Duration {title} running in",
                        "",
                        "OnDemand",
                        _flex_start_price(price_class, region),
                    ),
                    # Other SKUs of the same chips.
                    (f"Capacity Optimized {chip} running in", "", "OnDemand", demand * 1.1),
                    (f"Reserved {chip} in", " in Calendar Mode", "OnDemand", demand * 0.7),
                    (
                        f"Commitment v1: {chip} running in",
                        " for 3 Years",
                        "Commit3Yr",
                        demand * 0.45,
                    ),
                )
            )


def _prices_by_region(price_class: str) -> dict[str, tuple[float, float]]:
    """On-demand and spot price per chip by region, 0 for none. Zones of a region do not differ."""
    prices: dict[str, tuple[float, float]] = {}
    for accelerator in catalog.accelerator_types().values():
        if accelerator.price_class == price_class:
            for zone in accelerator.zones:
                node_prices = (
                    catalog.node_price(accelerator, zone, spot=spot) for spot in (False, True)
                )
                demand, spot = (
                    price.per_hour / accelerator.chips if price else 0.0 for price in node_prices
                )
                previous = prices.get(catalog.region_of(zone), (0.0, 0.0))
                prices[catalog.region_of(zone)] = demand or previous[0], spot or previous[1]
            return prices
    raise AssertionError(f"no accelerator type has price class {price_class}")


def _flex_start_price(price_class: str, region: str) -> float:
    for accelerator in catalog.accelerator_types().values():
        if accelerator.price_class == price_class:
            for zone in accelerator.zones:
                price = catalog.node_price(accelerator, zone, capacity="flex-start")
                if price is not None and catalog.region_of(zone) == region:
                    return price.per_hour / accelerator.chips
            return 0.0
    return 0.0


def _sku(service: str, text: str, usage: str, regions: Sequence[str], price: float) -> Any:
    """An hourly SKU. Without a price it is listed at zero, as reservations are by Google."""
    digest = hashlib.sha256(f"{service}/{text}".encode()).hexdigest().upper()
    number = KNOWN_IDS.get(text, f"{digest[:4]}-{digest[4:8]}-{digest[8:12]}")
    nanos = round(price * 1e9)
    sku = messages.Sku.pb()(
        name=f"services/{service}/skus/{number}",
        sku_id=number,
        description=text,
        category={
            "service_display_name": SERVICES[service],
            "resource_family": "Compute",
            "resource_group": "TPU",
            "usage_type": usage,
        },
        service_regions=regions,
        service_provider_name="Google",
        geo_taxonomy={"type_": 2 if len(regions) == 1 else 3, "regions": regions},
    )
    info = sku.pricing_info.add(currency_conversion_rate=1.0)
    info.effective_time.FromDatetime(EFFECTIVE_SINCE)
    info.pricing_expression.usage_unit = "h"
    info.pricing_expression.usage_unit_description = "hour"
    info.pricing_expression.base_unit = "s"
    info.pricing_expression.base_unit_description = "second"
    info.pricing_expression.base_unit_conversion_factor = 3600
    info.pricing_expression.display_quantity = 1
    rate = info.pricing_expression.tiered_rates.add(start_usage_amount=0)
    rate.unit_price.currency_code = "USD"
    rate.unit_price.units, rate.unit_price.nanos = divmod(nanos, 10**9)
    return sku
