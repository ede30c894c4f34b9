"""Who may call Cloud Billing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tpuctl.emulator.iam.api_access import ApiAccess
from tpuctl.emulator.iam.required_permissions import Need, Places

__all__ = ["ACCESS"]


def _billing_link(places: Places, request: Any) -> Iterator[Need]:
    """cloud.google.com/billing/docs/how-to/modify-project, "Permissions required"."""
    project = places.of(request.name)
    account = request.project_billing_info.billing_account_name
    if not account:
        yield Need("resourcemanager.projects.deleteBillingAssignment", project, request.name)
        return
    yield Need("resourcemanager.projects.createBillingAssignment", project, request.name)
    resource = places.of(account)
    if resource:
        yield Need("billing.resourceAssociations.create", resource, account)


ACCESS = ApiAccess(
    package=__package__,
    host="cloudbilling.googleapis.com",
    methods=("google.cloud.billing.",),
    rules={"billing_link": _billing_link},
    scopes=("cloud-billing",),
    reading_scopes=("cloud-billing.readonly",),
)
