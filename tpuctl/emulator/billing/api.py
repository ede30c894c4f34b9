"""Cloud Billing, as the core knows it."""

from __future__ import annotations

from tpuctl.emulator.billing.access import ACCESS
from tpuctl.emulator.wire.google_api import GoogleApi, Surface

__all__ = ["API"]

API = GoogleApi(
    access=ACCESS,
    services={
        "billing": "tpuctl.emulator.billing.accounts:BillingService",
        "price_list": "tpuctl.emulator.billing.catalog:PriceListService",
    },
    surfaces=(
        Surface(
            "google.cloud.billing.v1.CloudBilling",
            "google.cloud.billing_v1.services.cloud_billing",
            "CloudBilling",
            "billing",
            r"/v1/(?:billingAccounts|projects/[^/]+/billingInfo)",
            # Seen in a recorded run of `gcloud billing projects describe`: "billingEnabled": false.
            tells_defaults=True,
        ),
        Surface(
            "google.cloud.billing.v1.CloudCatalog",
            "google.cloud.billing_v1.services.cloud_catalog",
            "CloudCatalog",
            "price_list",
            r"/v1/services",
        ),
    ),
)
