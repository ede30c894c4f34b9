"""Billing of projects through the real gcloud."""

from __future__ import annotations

import pytest

from tests.support.gcloud import BILLING, Gcloud

OPEN = BILLING.partition("/")[2]
CLOSED = "0C105E-0C105E-0C105E"


@pytest.mark.soak
def test_closed_account_disables_billing(bare_gcloud: Gcloud) -> None:
    gcloud = bare_gcloud
    link = ("billing", "projects", "link", gcloud.project)
    linked = gcloud.json(*link, f"--billing-account={CLOSED}")
    # Cloud Billing includes false values.
    assert linked["billingEnabled"] is False
    assert linked["billingAccountName"] == f"billingAccounts/{CLOSED}"
    failed = gcloud.run(
        "storage", "buckets", "create", f"gs://closed-{gcloud.project}", check=False
    )
    assert "The billing account for the owning project is disabled in state closed" in (
        failed.stderr
    )
