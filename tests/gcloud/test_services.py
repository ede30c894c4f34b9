"""The enabled APIs of a project, through the real gcloud."""

from __future__ import annotations

import pytest

from tests.support.gcloud import BILLING, Gcloud


@pytest.mark.soak
def test_apis_are_enabled_together(bare_gcloud: Gcloud) -> None:
    gcloud = bare_gcloud
    gcloud.run("services", "enable", "tpu.googleapis.com", "compute.googleapis.com")
    listed = gcloud.run("services", "list").stdout
    assert [line.split(maxsplit=1) for line in listed.splitlines()[1:]] == [
        ["compute.googleapis.com", "Compute Engine API"],
        ["oslogin.googleapis.com", "Cloud OS Login API"],
        ["tpu.googleapis.com", "Cloud TPU API"],
    ]
    result = gcloud.run("beta", "services", "identity", "create", "--service=tpu.googleapis.com")
    assert "Service identity created: service-" in result.stderr
    assert "@cloud-tpu.iam.gserviceaccount.com" in result.stderr


@pytest.mark.soak
def test_service_and_billing_commands(bare_gcloud: Gcloud) -> None:
    gcloud = bare_gcloud
    accounts = {
        account["name"]: account["open"] for account in gcloud.json("billing", "accounts", "list")
    }
    assert sorted(accounts.values()) == [False, True]
    assert gcloud.json("billing", "accounts", "describe", BILLING.partition("/")[2])["open"] is True
    table = gcloud.run("billing", "accounts", "list").stdout
    assert table.split()[:4] == ["ACCOUNT_ID", "NAME", "OPEN", "MASTER_ACCOUNT_ID"]
    billing = gcloud.json("billing", "projects", "describe", gcloud.project)
    assert billing["billingAccountName"] == BILLING
    everyones = gcloud.json(
        "billing", "projects", "list", f"--billing-account={BILLING.partition('/')[2]}"
    )
    assert gcloud.project in [project["projectId"] for project in everyones]

    gcloud.run("billing", "projects", "unlink", gcloud.project)
    billing_only = gcloud.json("billing", "projects", "describe", gcloud.project)
    assert (billing_only["billingEnabled"], billing_only["billingAccountName"]) == (False, "")
    failed = gcloud.run("services", "enable", "tpu.googleapis.com", check=False)
    assert "UREQ_PROJECT_BILLING_NOT_FOUND" in failed.stderr
    absent = gcloud.run(
        "billing", "projects", "link", gcloud.project, "--billing-account=000000-000000-000000",
        check=False,
    )  # fmt: skip
    assert "does not have permission" in absent.stderr
    gcloud.run(
        "billing", "projects", "link", gcloud.project,
        f"--billing-account={BILLING.partition('/')[2]}",
    )  # fmt: skip

    gcloud.run("services", "enable", "tpu.googleapis.com")
    gcloud.run("services", "enable", "tpu.googleapis.com")
    gcloud.run("services", "disable", "tpu.googleapis.com")
    assert gcloud.json("services", "list", "--enabled") == []
    available = gcloud.json("services", "list", "--available")
    assert "tpu.googleapis.com" in [service["config"]["name"] for service in available]
    unknown = gcloud.run("services", "enable", "no-such-api", check=False)
    assert "SERVICE_CONFIG_NOT_FOUND_OR_PERMISSION_DENIED" in unknown.stderr
