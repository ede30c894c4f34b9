"""Registration of Cloud Billing: surfaces, permissions and paces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tpuctl.emulator.iam.api_access import ApiAccess
from tpuctl.emulator.iam.required_permissions import Need, PolicyResources
from tpuctl.emulator.wire.google_api import GoogleApi, Surface


def _billing_link(resources: PolicyResources, request: Any) -> Iterator[Need]:
    """cloud.google.com/billing/docs/how-to/modify-project, "Permissions required"."""
    project = resources.resolve(request.name)
    account = request.project_billing_info.billing_account_name
    if not account:
        yield Need("resourcemanager.projects.deleteBillingAssignment", project, request.name)
        return
    yield Need("resourcemanager.projects.createBillingAssignment", project, request.name)
    resource = resources.resolve(account)
    if resource:
        yield Need("billing.resourceAssociations.create", resource, account)


_ACCESS = ApiAccess(
    package=__package__,
    host="cloudbilling.googleapis.com",
    methods=("google.cloud.billing.",),
    rules={"billing_link": _billing_link},
    scopes=("cloud-billing",),
    read_scopes=("cloud-billing.readonly",),
)

API = GoogleApi(
    access=_ACCESS,
    services={
        "billing": "tpuctl.emulator.billing.accounts:BillingService",
        "price_list": "tpuctl.emulator.billing.catalog:PriceListService",
    },
    documents={"cloudbilling.v1": "Cloud Billing v1"},
    surfaces=(
        Surface(
            "google.cloud.billing.v1.CloudBilling",
            "google.cloud.billing_v1.services.cloud_billing",
            "billing",
            r"/v1/(?:billingAccounts|projects/[^/]+/billingInfo)",
            # Seen in a recorded run of `gcloud billing projects describe`: "billingEnabled": false.
            includes_defaults=True,
        ),
        Surface(
            "google.cloud.billing.v1.CloudCatalog",
            "google.cloud.billing_v1.services.cloud_catalog",
            "price_list",
            r"/v1/services",
        ),
    ),
)
