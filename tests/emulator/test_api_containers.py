"""The organization, the folder, and projects in them, through the official clients."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import resourcemanager_v3
from google.iam.v1 import iam_policy_pb2

ORGANIZATION = "organizations/400000000001"
FOLDER = "folders/500000000001"
DOMAIN = "local-cloud.invalid"

both = pytest.mark.parametrize("transport", ["grpc", "rest"])


def organizations(cloud: Any, transport: str) -> Any:
    return cloud.client(resourcemanager_v3.OrganizationsClient, transport)


def folders(cloud: Any, transport: str) -> Any:
    return cloud.client(resourcemanager_v3.FoldersClient, transport)


def projects(cloud: Any) -> Any:
    return cloud.client(resourcemanager_v3.ProjectsClient)


@both
def test_get_and_search_organization(cloud: Any, transport: str) -> None:
    client = organizations(cloud, transport)
    organization = client.get_organization(name=ORGANIZATION, timeout=60)
    assert organization.display_name == DOMAIN
    assert list(client.search_organizations(query=f"domain:{DOMAIN}", timeout=60)) == [organization]
    assert list(client.search_organizations(timeout=60)) == [organization]
    assert not list(client.search_organizations(query="domain:b.example", timeout=60))
    with pytest.raises(exceptions.Forbidden) as caught:
        client.get_organization(name="organizations/1", timeout=60)
    assert "(or it may not exist)" in caught.value.message


@both
def test_get_list_and_search_folder(cloud: Any, transport: str) -> None:
    client = folders(cloud, transport)
    folder = client.get_folder(name=FOLDER, timeout=60)
    assert folder.parent == ORGANIZATION
    assert list(client.list_folders(parent=ORGANIZATION, timeout=60)) == [folder]
    assert not list(client.list_folders(parent=FOLDER, timeout=60))
    query = f"parent={ORGANIZATION} AND state:ACTIVE"
    assert list(client.search_folders(query=query, timeout=60)) == [folder]
    with pytest.raises(exceptions.Forbidden):
        client.get_folder(name="folders/1", timeout=60)
    with pytest.raises(exceptions.Forbidden):
        client.list_folders(parent="organizations/1", timeout=60)
    with pytest.raises(exceptions.GoogleAPICallError) as caught:
        client.delete_folder(name=FOLDER, timeout=60)
    assert "DeleteFolder is not implemented" in caught.value.message


@both
@pytest.mark.parametrize("name", [ORGANIZATION, FOLDER])
def test_container_policies_and_permissions(cloud: Any, transport: str, name: str) -> None:
    cloud.put_setting("denied_permissions", ["resourcemanager.projects.create"])
    client = (organizations if name == ORGANIZATION else folders)(cloud, transport)

    permissions = ["resourcemanager.projects.create", "resourcemanager.projects.list"]
    answer = client.test_iam_permissions(resource=name, permissions=permissions, timeout=60)
    assert list(answer.permissions) == ["resourcemanager.projects.list"]
    absent = f"{name.partition('/')[0]}/1"
    answer = client.test_iam_permissions(resource=absent, permissions=permissions, timeout=60)
    assert not answer.permissions
    policy = client.get_iam_policy(resource=name, timeout=60)
    assert "roles/resourcemanager.projectCreator" in [binding.role for binding in policy.bindings]
    policy.bindings.add(role="roles/browser", members=["user:a@b.example"])
    request = iam_policy_pb2.SetIamPolicyRequest(resource=name, policy=policy)
    changed = client.set_iam_policy(request=request, timeout=60)
    assert client.get_iam_policy(resource=name, timeout=60) == changed


def test_project_parent_must_exist(cloud: Any) -> None:
    client = projects(cloud)

    def make(project: str, parent: str) -> Any:
        body = {"project_id": project, "parent": parent}
        return client.create_project(request={"project": body}, timeout=60)

    for number, parent in enumerate((ORGANIZATION, FOLDER)):
        created = make(f"made-in-{number}", parent).result(timeout=60)
        assert created.parent == parent
        assert created in list(client.list_projects(parent=parent, timeout=60))
    started = make("made-nowhere", "folders/1")
    with pytest.raises(exceptions.Forbidden) as caught:
        started.result(timeout=60)
    assert "denied on parent resource 'folders/1'" in caught.value.message
    assert not list(client.search_projects(query="id:made-nowhere", timeout=60))
    with pytest.raises(exceptions.BadRequest) as caught:
        make("made-nowhere", "folders/mine")
    assert "Parent id must be numeric." in caught.value.message
