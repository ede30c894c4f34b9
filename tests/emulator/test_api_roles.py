"""Custom and predefined roles and known permissions, through the official clients."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import iam_admin_v1, resourcemanager_v3

from tests.support.locations import PROJECT

NAME = f"projects/{PROJECT}"
ROLE = f"{NAME}/roles/tpuctl.watchdog"
WATCH = ["tpu.nodes.delete", "tpu.nodes.get"]  # queued resources have the same permissions
FULL = iam_admin_v1.RoleView.FULL

both = pytest.mark.parametrize("transport", ["grpc", "rest"])


def iam(cloud: Any) -> Any:
    return cloud.client(iam_admin_v1.IAMClient, "grpc")


def projects(cloud: Any, transport: str = "rest") -> Any:
    return cloud.client(resourcemanager_v3.ProjectsClient, transport)


def make_role(cloud: Any, permissions: list[str], role_id: str = "tpuctl.watchdog") -> Any:
    request = {
        "parent": NAME,
        "role_id": role_id,
        "role": {
            "title": "Watch",
            "included_permissions": permissions,
            "stage": iam_admin_v1.Role.RoleLaunchStage.GA,
        },
    }
    return iam(cloud).create_role(request=request, timeout=60)


def make_account(cloud: Any, account_id: str = "stack-tpu") -> Any:
    request = {"name": NAME, "account_id": account_id}
    return iam(cloud).create_service_account(request=request, timeout=60)


def test_custom_role_lifecycle(cloud: Any) -> None:
    client = iam(cloud)
    role = make_role(cloud, WATCH)
    assert (role.name, role.title, role.deleted) == (ROLE, "Watch", False)
    assert list(role.included_permissions) == sorted(WATCH)
    request = {"name": ROLE}
    assert client.get_role(request=request, timeout=60) == role
    with pytest.raises(exceptions.AlreadyExists) as caught:
        make_role(cloud, WATCH)
    assert f"A role named tpuctl.watchdog in {NAME} already exists." in caught.value.message
    changes = {"included_permissions": [*WATCH, "tpu.nodes.create"], "title": "not this"}
    changed = client.update_role(
        request={
            "name": ROLE,
            "role": {**changes, "etag": role.etag},
            "update_mask": {"paths": ["included_permissions"]},
        },
        timeout=60,
    )
    assert len(changed.included_permissions) == 3
    assert changed.title == "Watch"
    assert changed.etag != role.etag
    with pytest.raises(exceptions.Aborted):
        client.update_role(request={"name": ROLE, "role": {"etag": role.etag}}, timeout=60)
    with pytest.raises(exceptions.Aborted):
        client.delete_role(request={"name": ROLE, "etag": role.etag}, timeout=60)
    assert client.delete_role(request=request, timeout=60).deleted
    assert client.get_role(request=request, timeout=60).deleted
    with pytest.raises(exceptions.FailedPrecondition) as caught:
        make_role(cloud, WATCH)
    assert (
        "You can't create a role_id (tpuctl.watchdog) which has been marked for deletion."
        in caught.value.message
    )
    for refused in (client.delete_role, client.update_role):
        with pytest.raises(exceptions.FailedPrecondition):
            refused(request=request, timeout=60)
    assert not client.undelete_role(request=request, timeout=60).deleted
    with pytest.raises(exceptions.FailedPrecondition):
        client.undelete_role(request=request, timeout=60)
    assert list(client.get_role(request=request, timeout=60).included_permissions) == list(
        changed.included_permissions
    )


def test_list_roles(cloud: Any) -> None:
    client = iam(cloud)
    for role_id in ("first", "second", "third"):
        make_role(cloud, WATCH, role_id)
    client.delete_role(request={"name": f"{NAME}/roles/second"}, timeout=60)

    def names(**more: Any) -> list[str]:
        request = {"parent": NAME, "page_size": 1, **more}
        return [
            role.name.rpartition("/")[2] for role in client.list_roles(request=request, timeout=60)
        ]

    assert names() == ["first", "third"]
    assert names(show_deleted=True) == ["first", "second", "third"]
    request: dict[str, Any] = {"parent": NAME}
    for view, count in ((iam_admin_v1.RoleView.BASIC, 0), (FULL, len(WATCH))):
        roles = list(client.list_roles(request={**request, "view": view}, timeout=60))
        assert {len(role.included_permissions) for role in roles} == {count}


def test_predefined_roles_have_permissions(cloud: Any) -> None:
    client = iam(cloud)
    listed = {role.name: role for role in client.list_roles(request={}, timeout=60)}
    expected = {
        "roles/tpu.admin": "tpu.nodes.create",
        "roles/storage.objectAdmin": "storage.objects.create",
        "roles/storage.legacyBucketReader": "storage.buckets.get",
        "roles/logging.logWriter": "logging.logEntries.create",
        "roles/monitoring.metricWriter": "monitoring.timeSeries.create",
        "roles/iam.serviceAccountUser": "iam.serviceAccounts.actAs",
    }
    for name, permission in expected.items():
        role = client.get_role(request={"name": name}, timeout=60)
        assert permission in role.included_permissions
        assert role.title == listed[name].title
    admin = client.get_role(request={"name": "roles/storage.objectAdmin"}, timeout=60)
    assert "storage.buckets.get" not in admin.included_permissions
    with pytest.raises(exceptions.NotFound):
        client.get_role(request={"name": "roles/no.such"}, timeout=60)


@pytest.mark.parametrize(
    ("permission", "is_valid"),
    [
        ("tpu.nodes.create", True),
        ("tpu.nodes.performMaintenance", True),
        ("tpu.queuedResources.create", False),
        ("tpu.nodes.drink", False),
        ("tpu.nodes", False),
        ("storage.objects.get", True),
        ("storage.objects.got", False),
        ("compute.instances.delete", True),
        ("compute.instances.destroy", False),
        ("logging.logEntries.create", True),
        ("monitoring.timeSeries.create", True),
        ("secretmanager.versions.access", True),
        ("resourcemanager.projects.get", True),
        ("resourcemanager.projects.createBillingAssignment", True),
        ("resourcemanager.projects.create", False),
        ("resourcemanager.projects.list", False),
        ("billing.accounts.get", False),
    ],
)
def test_project_permissions_are_validated(cloud: Any, permission: str, is_valid: bool) -> None:
    permissions = [permission, "tpu.nodes.get"]
    client = projects(cloud)
    if is_valid:
        answer = client.test_iam_permissions(resource=NAME, permissions=permissions, timeout=60)
        assert list(answer.permissions) == permissions
        make_role(cloud, permissions)
        return
    with pytest.raises(exceptions.BadRequest):
        client.test_iam_permissions(resource=NAME, permissions=permissions, timeout=60)
    with pytest.raises(exceptions.InvalidArgument) as caught:
        make_role(cloud, permissions)
    assert caught.value.message.endswith(f"Permission {permission} is not valid.")


def test_testable_permissions_are_valid_in_roles(cloud: Any) -> None:
    request = {"full_resource_name": f"//cloudresourcemanager.googleapis.com/{NAME}"}
    names = [
        permission.name
        for permission in iam(cloud).query_testable_permissions(request=request, timeout=60)
    ]
    assert {"tpu.nodes.create", "compute.instances.create"} <= set(names)
    assert "resourcemanager.projects.create" not in names
    assert list(make_role(cloud, names).included_permissions) == sorted(names)


@pytest.mark.parametrize("role_id", ["no", "with-dash", "x" * 65, ""])
def test_invalid_role_ids_are_rejected(cloud: Any, role_id: str) -> None:
    with pytest.raises(exceptions.InvalidArgument) as caught:
        make_role(cloud, WATCH, role_id)
    assert f'The role_id "{role_id}" is invalid.' in caught.value.message


def test_invalid_role_names_are_rejected(cloud: Any) -> None:
    client = iam(cloud)
    for name in (f"{NAME}/roles/with-dash", "watch", f"{NAME}/role/watch"):
        with pytest.raises(exceptions.InvalidArgument):
            client.get_role(request={"name": name}, timeout=60)
    with pytest.raises(exceptions.NotFound) as caught:
        client.get_role(request={"name": ROLE}, timeout=60)
    assert f"The role named {ROLE} was not found." in caught.value.message
    with pytest.raises(exceptions.PermissionDenied):
        client.get_role(request={"name": "projects/missing/roles/watch"}, timeout=60)


@both
def test_denied_permissions_setting(cloud: Any, transport: str) -> None:
    cloud.put_setting("denied_permissions", ["tpu.nodes.create", "iam.serviceAccounts.actAs"])

    client = projects(cloud, transport)
    permissions = ["tpu.nodes.get", "tpu.nodes.create"]
    answer = client.test_iam_permissions(resource=NAME, permissions=permissions, timeout=60)
    assert list(answer.permissions) == ["tpu.nodes.get"]
    account = make_account(cloud)
    request = {
        "resource": account.name,
        "permissions": ["iam.serviceAccounts.actAs", "iam.serviceAccounts.get"],
    }
    answer = iam(cloud).test_iam_permissions(request=request, timeout=60)
    assert list(answer.permissions) == ["iam.serviceAccounts.get"]
    with pytest.raises((exceptions.BadRequest, exceptions.InvalidArgument)):
        client.test_iam_permissions(resource=NAME, permissions=["tpu.*"], timeout=60)


async def test_roles_survive_restart(make_cloud: Any) -> None:
    first = await make_cloud("kept")
    first.enable("iam")
    created = await asyncio.to_thread(make_role, first, WATCH)
    first.close()
    await first.server.close()
    second = await make_cloud("kept")
    restored = await asyncio.to_thread(
        lambda: iam(second).get_role(request={"name": ROLE}, timeout=60)
    )
    assert restored == created
