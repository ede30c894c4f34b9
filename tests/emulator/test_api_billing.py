"""Billing accounts and project billing info, through the official client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import billing_v1, service_usage_v1
from google.iam.v1 import iam_policy_pb2

from tests.support.locations import PROJECT

OPEN = "billingAccounts/010CA1-010CA1-010CA1"
CLOSED = "billingAccounts/0C105E-0C105E-0C105E"
ABSENT = "billingAccounts/000000-000000-000000"

both = pytest.mark.parametrize("transport", ["grpc", "rest"])


def billing(cloud: Any, transport: str) -> Any:
    return cloud.client(billing_v1.CloudBillingClient, transport)


@both
def test_new_cloud_has_open_and_closed_billing_account(new_cloud: Any, transport: str) -> None:
    client = billing(new_cloud, transport)
    accounts = {account.name: account for account in client.list_billing_accounts(timeout=60)}
    are_open = {name: account.open_ for name, account in accounts.items()}
    assert are_open == {OPEN: True, CLOSED: False}
    assert client.get_billing_account(name=OPEN, timeout=60) == accounts[OPEN]
    request = {"filter": "open=true"}
    (only,) = client.list_billing_accounts(request=request, timeout=60)
    assert only.name == OPEN
    info = client.get_project_billing_info(name=f"projects/{PROJECT}", timeout=60)
    assert (info.billing_account_name, info.billing_enabled) == (OPEN, True)
    assert info.name == f"projects/{PROJECT}/billingInfo"
    plain = new_cloud.request("GET", f"/v1/{OPEN}").json()  # as clients without our types read it
    assert (plain["open"], plain["currencyCode"]) == (True, "USD")


@both
def test_link_and_unlink_billing(cloud: Any, transport: str) -> None:
    cloud.in_loop(cloud.server.registry.projects.add, "new-project")
    name = "projects/new-project"

    client = billing(cloud, transport)

    def link(account: str) -> tuple[str, bool]:
        info = client.update_project_billing_info(
            name=name, project_billing_info={"billing_account_name": account}, timeout=60
        )
        assert info == client.get_project_billing_info(name=name, timeout=60)
        return info.billing_account_name, info.billing_enabled

    def paid_for(account: str) -> set[str]:
        rows = client.list_project_billing_info(name=account, timeout=60)
        return {row.project_id for row in rows}

    before = client.get_project_billing_info(name=name, timeout=60)
    assert (before.billing_account_name, before.billing_enabled) == ("", False)
    for _ in range(2):
        assert link(OPEN) == (OPEN, True)
    assert paid_for(OPEN) == {PROJECT, "new-project"}
    assert link(CLOSED) == (
        CLOSED,
        False,
    )  # same as none, according to the method's description
    assert (paid_for(OPEN), paid_for(CLOSED)) == ({PROJECT}, {"new-project"})
    for _ in range(2):
        assert link("") == ("", False)
    with pytest.raises(exceptions.Forbidden):
        link(ABSENT)
    with pytest.raises(exceptions.BadRequest):
        link("billingAccounts/mine")
    with pytest.raises(exceptions.Forbidden):
        client.get_project_billing_info(name="projects/missing-project", timeout=60)


def test_paid_apis_and_buckets_require_billing(cloud: Any) -> None:
    """Paid APIs and buckets require only a link to an open account."""
    cloud.in_loop(cloud.server.registry.projects.add, "new-project")

    client = billing(cloud, "rest")
    services = cloud.client(service_usage_v1.ServiceUsageClient)
    enabling = {"name": "projects/new-project/services/tpu.googleapis.com"}
    with pytest.raises(exceptions.BadRequest) as caught:
        services.enable_service(request=enabling, timeout=60)
    assert caught.value.reason == "UREQ_PROJECT_BILLING_NOT_FOUND"
    with pytest.raises(exceptions.Forbidden):
        cloud.storage("new-project").create_bucket("new-bucket", timeout=60)

    def link(account: str) -> None:
        client.update_project_billing_info(
            name="projects/new-project",
            project_billing_info={"billing_account_name": account},
            timeout=60,
        )

    link(CLOSED)
    with pytest.raises(exceptions.BadRequest) as caught:
        services.enable_service(request=enabling, timeout=60)
    assert caught.value.reason == "UREQ_PROJECT_BILLING_NOT_OPEN"
    with pytest.raises(exceptions.Forbidden):
        cloud.storage("new-project").create_bucket("new-bucket", timeout=60)
    link(OPEN)
    services.enable_service(request=enabling, timeout=60).result(timeout=60)
    cloud.storage("new-project").create_bucket("new-bucket", timeout=60)


@both
def test_billing_account_policy_and_permissions(cloud: Any, transport: str) -> None:
    cloud.put_setting("denied_permissions", ["billing.resourceAssociations.create"])

    client = billing(cloud, transport)
    permissions = ["billing.resourceAssociations.create", "billing.accounts.get"]
    request = {"resource": OPEN, "permissions": permissions}
    answer = client.test_iam_permissions(request=request, timeout=60)
    assert list(answer.permissions) == ["billing.accounts.get"]
    request = {"resource": ABSENT, "permissions": permissions}
    assert not client.test_iam_permissions(request=request, timeout=60).permissions
    policy = client.get_iam_policy(resource=OPEN, timeout=60)
    assert [binding.role for binding in policy.bindings] == ["roles/billing.admin"]
    policy.bindings.add(role="roles/billing.user", members=["user:a@b.example"])
    request = iam_policy_pb2.SetIamPolicyRequest(resource=OPEN, policy=policy)
    changed = client.set_iam_policy(request=request, timeout=60)
    assert client.get_iam_policy(resource=OPEN, timeout=60) == changed
    with pytest.raises((exceptions.Aborted, exceptions.Conflict)):
        client.set_iam_policy(request=request, timeout=60)


async def test_billing_link_survives_restart(make_cloud: Any) -> None:
    first = await make_cloud("kept")
    await asyncio.to_thread(
        lambda: billing(first, "rest").update_project_billing_info(
            name=f"projects/{PROJECT}",
            project_billing_info={"billing_account_name": CLOSED},
            timeout=60,
        )
    )
    first.close()
    await first.server.close()
    second = await make_cloud("kept")
    info = await asyncio.to_thread(
        lambda: billing(second, "rest").get_project_billing_info(
            name=f"projects/{PROJECT}", timeout=60
        )
    )
    assert (info.billing_account_name, info.billing_enabled) == (CLOSED, False)
