"""Policies with roles and accounts that are created and deleted, and with other domains."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import iam_admin_v1, resourcemanager_v3
from google.iam.v1 import iam_policy_pb2, policy_pb2

from tests.support.locations import PROJECT
from tpuctl.local_cloud import remote_control

NAME = f"projects/{PROJECT}"
ROLE = f"{NAME}/roles/tpuctl.watchdog"


def iam(cloud: Any) -> Any:
    return cloud.client(iam_admin_v1.IAMClient, "grpc")


def projects(cloud: Any) -> Any:
    return cloud.client(resourcemanager_v3.ProjectsClient)


def make_role(cloud: Any) -> Any:
    request = {
        "parent": NAME,
        "role_id": "tpuctl.watchdog",
        "role": {"title": "Watch", "included_permissions": ["tpu.nodes.delete"]},
    }
    return iam(cloud).create_role(request=request, timeout=60)


def make_account(cloud: Any, account_id: str = "stack-tpu") -> Any:
    request = {"name": NAME, "account_id": account_id}
    return iam(cloud).create_service_account(request=request, timeout=60)


def bind(cloud: Any, role: str, *members: str) -> Any:
    """Add a binding to the project's policy; returns the new policy."""
    client = projects(cloud)
    policy = client.get_iam_policy(resource=NAME, timeout=60)
    policy.bindings.add(role=role, members=members)
    request = iam_policy_pb2.SetIamPolicyRequest(resource=NAME, policy=policy)
    return client.set_iam_policy(request=request, timeout=60)


def members_of(cloud: Any, role: str) -> list[str]:
    policy = projects(cloud).get_iam_policy(resource=NAME, timeout=60)
    return [
        member for binding in policy.bindings if binding.role == role for member in binding.members
    ]


def test_set_policy_rejects_unknown_roles(cloud: Any) -> None:
    """Existing bindings stay when their role is deleted, and others can be added."""
    member = "user:a@b.example"

    for role in (ROLE, "projects/other/roles/watch"):
        with pytest.raises(exceptions.BadRequest) as caught:
            bind(cloud, role, member)
        text = f"Role ({role}) does not exist in the resource's hierarchy."
        assert text in caught.value.message
    make_role(cloud)
    bind(cloud, ROLE, member)
    iam(cloud).delete_role(request={"name": ROLE}, timeout=60)
    assert members_of(cloud, ROLE) == [member]
    bind(cloud, "roles/tpu.viewer", member)
    assert members_of(cloud, ROLE) == [member]
    with pytest.raises(exceptions.BadRequest):
        bind(cloud, ROLE, "user:c@b.example")


def test_role_of_other_project_is_rejected(cloud: Any) -> None:
    cloud.in_loop(cloud.server.registry.projects.add, "other-project")
    cloud.enable("iam", project="other-project")

    make_role(cloud)
    client = projects(cloud)
    policy = policy_pb2.Policy()
    policy.bindings.add(role=ROLE, members=["user:a@b.example"])
    request = iam_policy_pb2.SetIamPolicyRequest(resource="projects/other-project", policy=policy)
    with pytest.raises(exceptions.BadRequest):
        client.set_iam_policy(request=request, timeout=60)


def test_new_role_and_account_become_visible_later(cloud: Any) -> None:
    """With realistic paces they exist immediately, but policies reject them at first."""
    remote_control.change_settings(cloud.local_cloud, pace="real")
    role, account = make_role(cloud), make_account(cloud)
    assert iam(cloud).get_role(request={"name": ROLE}, timeout=60) == role
    with pytest.raises(exceptions.BadRequest) as caught:
        bind(cloud, ROLE, "user:a@b.example")
    assert "does not exist in the resource's hierarchy" in caught.value.message
    with pytest.raises(exceptions.BadRequest) as caught:
        bind(cloud, "roles/tpu.viewer", f"serviceAccount:{account.email}")
    assert f"Service account {account.email} does not exist." in caught.value.message


def test_set_policy_rejects_unknown_accounts(cloud: Any) -> None:
    role = "roles/tpu.viewer"
    number = cloud.project_number

    email = f"stack-tpu@{PROJECT}.iam.gserviceaccount.com"
    with pytest.raises(exceptions.BadRequest) as caught:
        bind(cloud, role, f"serviceAccount:{email}")
    assert f"Service account {email} does not exist." in caught.value.message
    bucket = cloud.storage().create_bucket("a-bucket", timeout=60)
    policy = bucket.get_iam_policy(requested_policy_version=3, timeout=60)
    policy.bindings.append({"role": role, "members": {f"serviceAccount:{email}"}})
    with pytest.raises(exceptions.BadRequest) as caught:
        bucket.set_iam_policy(policy, timeout=60)
    assert f"Service account {email} does not exist." in caught.value.message
    make_account(cloud)
    existing = [
        f"serviceAccount:{email}",
        f"serviceAccount:{number}-compute@developer.gserviceaccount.com",
        f"serviceAccount:service-{number}@cloud-tpu.iam.gserviceaccount.com",
        "serviceAccount:robot@foreign-project.iam.gserviceaccount.com",
    ]
    bind(cloud, role, *existing)
    assert sorted(members_of(cloud, role)) == sorted(existing)
    bucket.set_iam_policy(policy, timeout=60)


def test_service_agents_exist_after_enabling_api(new_cloud: Any) -> None:
    number = new_cloud.project_number
    members = [
        f"serviceAccount:{number}-compute@developer.gserviceaccount.com",
        f"serviceAccount:service-{number}@cloud-tpu.iam.gserviceaccount.com",
    ]

    def refused() -> int:
        count = 0
        for member in members:
            try:
                bind(new_cloud, "roles/tpu.viewer", member)
            except exceptions.BadRequest:
                count += 1
        return count

    assert refused() == 2
    new_cloud.enable("compute", "tpu")
    assert refused() == 0


def test_deleted_accounts_are_renamed_in_policies(cloud: Any) -> None:
    """A recreated account has no grants of the old one, which can be undeleted."""
    role = "roles/tpu.viewer"

    client = iam(cloud)
    account = make_account(cloud)
    plain = f"serviceAccount:{account.email}"
    deleted = f"deleted:serviceAccount:{account.email}?uid={account.unique_id}"
    bind(cloud, role, plain)
    account_policy = client.get_iam_policy(request={"resource": account.name}, timeout=60)
    account_policy.bindings.add(role="roles/iam.serviceAccountUser", members=["user:a@b.example"])
    client.set_iam_policy(request={"resource": account.name, "policy": account_policy}, timeout=60)
    client.delete_service_account(name=account.name, timeout=60)
    assert members_of(cloud, role) == [deleted]
    recreated = make_account(cloud)
    assert recreated.unique_id != account.unique_id
    assert not client.get_iam_policy(request={"resource": recreated.name}, timeout=60).bindings
    bind(cloud, role, plain)
    assert sorted(members_of(cloud, role)) == sorted([plain, deleted])
    name = f"{NAME}/serviceAccounts/{account.unique_id}"
    with pytest.raises(exceptions.AlreadyExists):
        client.undelete_service_account(request={"name": name}, timeout=60)
    client.delete_service_account(name=recreated.name, timeout=60)
    request = {"name": f"projects/-/serviceAccounts/{account.unique_id}"}
    back = client.undelete_service_account(request=request, timeout=60).restored_account
    assert back == account
    second = f"deleted:serviceAccount:{recreated.email}?uid={recreated.unique_id}"
    assert sorted(members_of(cloud, role)) == sorted([plain, second])
    restored_policy = client.get_iam_policy(request={"resource": back.name}, timeout=60)
    assert [binding.role for binding in restored_policy.bindings] == [
        "roles/iam.serviceAccountUser"
    ]
    with pytest.raises(exceptions.NotFound):
        client.undelete_service_account(request=request, timeout=60)


def test_allowed_member_domains_constraint(cloud: Any) -> None:
    """Existing bindings stay; the organization's users, accounts and agents are allowed."""
    number = cloud.project_number
    role = "roles/tpu.viewer"
    bind(cloud, "roles/viewer", "user:before@b.example")
    cloud.put_setting("policies", ["iam.allowedPolicyMemberDomains"])
    account = make_account(cloud)
    members = [
        "user:ann@local-cloud.invalid",
        f"serviceAccount:{account.email}",
        f"serviceAccount:service-{number}@cloud-tpu.iam.gserviceaccount.com",
    ]
    bind(cloud, role, *members)
    assert set(members) <= set(members_of(cloud, role))
    for member in (
        "user:a@b.example",
        "allUsers",
        "serviceAccount:service-1@gcp-sa-logging.iam.gserviceaccount.com",
    ):
        with pytest.raises(exceptions.GoogleAPICallError) as caught:
            bind(cloud, "roles/browser", member)
        text = "One or more users named in the policy do not belong to a permitted customer."
        assert text in caught.value.message
        (detail,) = caught.value.details
        (violation,) = detail["violations"]
        assert violation["type"] == "constraints/iam.allowedPolicyMemberDomains"
        assert member.rpartition(":")[2] in violation["description"]
    bucket = cloud.storage().create_bucket("a-bucket", timeout=60)
    policy = bucket.get_iam_policy(requested_policy_version=3, timeout=60)
    policy.bindings.append({"role": "roles/storage.objectViewer", "members": {"allUsers"}})
    with pytest.raises(exceptions.PreconditionFailed) as caught:
        bucket.set_iam_policy(policy, timeout=60)
    assert "do not belong to a permitted customer" in caught.value.message
    assert members_of(cloud, "roles/viewer") == ["user:before@b.example"]
