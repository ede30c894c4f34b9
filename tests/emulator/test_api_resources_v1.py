"""Resource Manager v1 and v2, through clients built from discovery documents."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from googleapiclient import errors

from tests.support.callers import Member, grant
from tests.support.locations import PROJECT
from tpuctl.local_cloud import remote_control

ORGANIZATION, FOLDER = "400000000001", "500000000001"


@pytest.fixture
async def crm(cloud: Any) -> Any:
    return cloud.discovered("cloudresourcemanager", "v1")


def refused(call: Any, status: int, text: str) -> None:
    with pytest.raises(errors.HttpError) as caught:
        call.execute()
    assert (caught.value.status_code, caught.value.reason) == (status, text)


def test_create_project_returns_v1_operation(cloud: Any, crm: Any) -> None:
    remote_control.change_settings(cloud.local_cloud, pace="quick")
    body = {
        "projectId": "made-here",
        "name": "Made here",
        "parent": {"type": "folder", "id": FOLDER},
        "labels": {"a": "b"},
    }
    operation = crm.projects().create(body=body).execute()
    kind = "type.googleapis.com/google.cloudresourcemanager.v1"
    assert operation["name"].startswith("operations/cp.")
    assert operation.keys() == {"name"}
    while not operation.get("done"):
        operation = crm.operations().get(name=operation["name"]).execute()
    assert operation["metadata"]["@type"] == f"{kind}.ProjectCreationStatus"
    assert operation["metadata"]["gettable"] is operation["metadata"]["ready"] is True
    project = operation["response"]
    assert project.pop("@type") == f"{kind}.Project"
    assert {key: project[key] for key in body} == body
    assert project["lifecycleState"] == "ACTIVE"
    assert crm.projects().get(projectId="made-here").execute() == project
    by_number = crm.projects().get(projectId=project["projectNumber"]).execute()
    assert by_number == project
    refused(crm.projects().create(body=body), 409, "Requested entity already exists: made-here")


def test_missing_project_looks_like_denied(crm: Any) -> None:
    absent = {"projectId": "not-there"}
    denied = (403, "The caller does not have permission")
    refused(crm.projects().get(**absent), *denied)
    refused(crm.projects().delete(**absent), *denied)
    refused(crm.projects().getAncestry(**absent, body={}), *denied)
    refused(crm.projects().update(**absent, body={"name": "x"}), *denied)


def test_project_update_move_delete_undelete(crm: Any) -> None:
    by_id = {"projectId": PROJECT}
    project = crm.projects().get(**by_id).execute()
    project |= {"name": "Another", "labels": {"k": "v"}}
    project["parent"] = {"type": "folder", "id": FOLDER}
    assert crm.projects().update(**by_id, body=project).execute() == project
    ancestry = crm.projects().getAncestry(**by_id, body={}).execute()["ancestor"]
    assert [ancestor["resourceId"] for ancestor in ancestry] == [
        {"type": "project", "id": PROJECT},
        {"type": "folder", "id": FOLDER},
        {"type": "organization", "id": ORGANIZATION},
    ]
    assert crm.projects().delete(**by_id).execute() == {}
    assert crm.projects().get(**by_id).execute()["lifecycleState"] == "DELETE_REQUESTED"
    precondition = (400, "Precondition check failed.")
    refused(crm.projects().update(**by_id, body=project), *precondition)
    refused(crm.projects().delete(**by_id), *precondition)
    assert crm.projects().undelete(**by_id, body={}).execute() == {}
    refused(crm.projects().undelete(**by_id, body={}), *precondition)
    assert crm.projects().get(**by_id).execute() == project


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ["blue", "deleted", "local", "red"]),
        ("lifecycleState:ACTIVE", ["blue", "local", "red"]),
        ("lifecycleState:DELETE_REQUESTED", ["deleted"]),
        ("name:re*", ["red"]),
        ("NAME:RED", ["red"]),
        ("labels.color:*", ["blue", "red"]),
        ("labels.color:red", ["red"]),
        # "If multiple fields are included … match any of the fields", but for the parent's.
        ("labels.color:red labels.size:big", ["blue", "red"]),
        ("labels.color:* AND labels.size:big", ["blue"]),
        ("labels.color:* AND NOT labels.size:big", ["red"]),
        ("parent.type:folder parent.id:500000000001", ["blue"]),
        ("parent.type:organization parent.id:500000000001", []),
        ("lifecycleState:ACTIVE AND (id:local-project OR labels.size=big)", ["blue", "local"]),
        ("NOT (id=local-project) AND lifecycleState:ACTIVE", ["blue", "red"]),
    ],
)
async def test_list_projects_filters(cloud: Any, crm: Any, text: str, names: list[str]) -> None:
    directory = cloud.server.registry.projects
    folder = f"folders/{FOLDER}"
    directory.add("red-one", display_name="red", labels={"color": "red"})
    size = {"color": "blue", "size": "big"}
    directory.add("blue-one", display_name="blue", labels=size, parent=folder)
    deleted = directory.add("deleted-one", display_name="deleted")
    directory.save({**deleted, "state": "DELETE_REQUESTED"})
    directory.save({**directory.require(PROJECT), "display_name": "local"})

    def run() -> None:
        names_found, request = [], crm.projects().list(filter=text, pageSize=1)
        while request is not None:
            answer = request.execute()
            names_found += [project["name"] for project in answer.get("projects", [])]
            request = crm.projects().list_next(request, answer)
        assert sorted(names_found) == names

    await asyncio.to_thread(run)


def test_invalid_filter_is_rejected(crm: Any) -> None:
    for text in ("color:red", "(name:x", "name:x)", "AND"):
        invalid = (400, "Request contains an invalid argument.")
        refused(crm.projects().list(filter=text), *invalid)


def test_v1_policies_match_v3(cloud: Any, crm: Any) -> None:
    projects = crm.projects()
    policy = projects.getIamPolicy(resource=PROJECT, body={}).execute()
    binding = {"role": "roles/viewer", "members": ["user:jane@example.com"]}
    body = {"policy": {**policy, "bindings": [*policy["bindings"], binding]}}
    changed = projects.setIamPolicy(resource=PROJECT, body=body).execute()
    assert binding in changed["bindings"]
    with pytest.raises(errors.HttpError) as caught:
        projects.setIamPolicy(resource=PROJECT, body=body).execute()
    assert caught.value.status_code == 409  # the etag is outdated
    newer = cloud.request("POST", f"/v3/projects/{PROJECT}:getIamPolicy").json()
    assert newer == changed
    permissions = ["resourcemanager.projects.get"]
    request = projects.testIamPermissions(resource=PROJECT, body={"permissions": permissions})
    assert request.execute() == {"permissions": permissions}


def test_organization_and_folder_in_v1_and_v2(cloud: Any, crm: Any) -> None:
    (organization,) = crm.organizations().search(body={}).execute()["organizations"]
    assert organization["name"] == f"organizations/{ORGANIZATION}"
    assert crm.organizations().get(name=organization["name"]).execute() == organization
    owner = organization["owner"]["directoryCustomerId"]
    for text, count in (
        (f"domain:{organization['displayName']}", 1),
        (f"owner.directorycustomerid:{owner}", 1),
        ("domain:example.com", 0),
    ):
        answer = crm.organizations().search(body={"filter": text}).execute()
        assert len(answer.get("organizations", [])) == count
    policy = crm.organizations().getIamPolicy(resource=organization["name"], body={}).execute()
    assert policy["bindings"]
    folders = cloud.discovered("cloudresourcemanager", "v2").folders()
    parent = f"organizations/{ORGANIZATION}"
    (folder,) = folders.list(parent=parent).execute()["folders"]
    assert (folder["name"], folder["parent"]) == (f"folders/{FOLDER}", parent)
    assert folder["lifecycleState"] == "ACTIVE"
    assert folders.get(name=folder["name"]).execute() == folder
    query = {"query": "lifecycleState=ACTIVE"}
    assert folders.search(body=query).execute()["folders"] == [folder]


def test_unimplemented_methods_are_named(cloud: Any, crm: Any) -> None:
    service = "google.cloudresourcemanager.v1"
    request = crm.projects().listOrgPolicies(resource=f"projects/{PROJECT}", body={})
    text = "is not implemented by the local cloud."
    refused(request, 501, f"{service}.Projects/ListOrgPolicies {text}")
    refused(crm.liens().list(), 501, f"{service}.Liens/ListLiens {text}")


def test_unknown_field_is_named(cloud: Any) -> None:
    answer = cloud.request("POST", "/v1/projects", json={"projectId": "made-here", "color": "red"})
    assert answer.status_code == 400
    assert 'Unknown name "color"' in answer.json()["error"]["message"]


def test_lists_show_only_accessible_resources(cloud: Any) -> None:
    """From the descriptions of projects.list, organizations.search and billingAccounts.list."""
    lists = (
        ("GET", "/v1/projects", "projects"),
        ("GET", "/v3/projects:search", "projects"),
        ("POST", "/v1/organizations:search", "organizations"),
        ("POST", "/v2/folders:search", "folders"),
        ("GET", "/v1/billingAccounts", "billingAccounts"),
    )

    def listed_kinds(member: Member) -> list[str]:
        return [kind for verb, path, kind in lists if member.send_ok(verb, path).get(kind)]

    ann = Member(cloud, "ann")
    all_kinds = [kind for _, _, kind in lists]
    assert listed_kinds(Member.owner(cloud)) == all_kinds
    assert listed_kinds(ann) == []
    grant(cloud, f"projects/{PROJECT}", "roles/viewer", ann.name)
    assert listed_kinds(ann) == ["projects", "projects"]
