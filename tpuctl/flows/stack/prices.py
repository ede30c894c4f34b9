"""Google's price list, read from the Cloud Billing Catalog API."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from tpuctl.cloud.clients import Cloud
from tpuctl.engine.step import step
from tpuctl.model.cost.price_list import PriceList, Sku
from tpuctl.model.events import Emit

PAGE_SIZE = 5000  # the maximum of the API
TIMEOUT_SECONDS = 60.0
GROUP = "TPU"


async def read_price_list(cloud: Cloud, services: Iterable[str], emit: Emit) -> PriceList:
    """The TPU SKUs of these services, in US dollars. Raises TpuctlError.

    Compute Engine has tens of thousands of SKUs: listing them takes some pages and seconds.
    """
    client = cloud.client("catalog")
    found: list[Sku] = []
    count = 0
    with step(emit, "Google's price list", "read") as progress:
        for service in sorted(set(services)):
            token = ""
            while True:
                request = {
                    "parent": service,
                    "currency_code": "USD",
                    "page_size": PAGE_SIZE,
                    "page_token": token,
                }
                page = await cloud.call(
                    "the price list", client.list_skus, request=request, timeout=TIMEOUT_SECONDS
                )
                rows = list(page.skus)
                found += (_sku(service, row) for row in rows if _is_tpu(row))
                count += len(rows)
                progress.report(f"{count:,} SKUs read, {len(found):,} for TPUs")
                token = page.next_page_token
                if not token:
                    break
        progress.result = f"{len(found):,} TPU SKUs"
    return PriceList(found, datetime.now(UTC).date().isoformat())


def _is_tpu(row: Any) -> bool:
    return bool(row.category.resource_group == GROUP)


def _sku(service: str, row: Any) -> Sku:
    latest = row.pricing_info[-1].pricing_expression if row.pricing_info else None
    rates = list(latest.tiered_rates) if latest is not None else []
    price = None
    if len(rates) == 1 and rates[0].unit_price.currency_code == "USD":
        money = rates[0].unit_price
        price = int(money.units) + money.nanos / 1e9
    return Sku(
        service=service,
        description=row.description,
        usage=row.category.usage_type,
        regions=tuple(row.service_regions),
        unit=latest.usage_unit if latest is not None else "",
        price=price,
    )
