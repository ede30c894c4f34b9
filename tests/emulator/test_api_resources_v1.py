"""Resource Manager v1 and v2, through the client that Google makes of their descriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import google_auth_httplib2
import httplib2
import pytest
from google.oauth2.credentials import Credentials
from googleapiclient import discovery, errors

from tests.support.members import Member, grant
from tests.support.places import PROJECT

ORGANIZATION, FOLDER = "400000000001", "500000000001"


def client(cloud: Any, version: str = "v1") -> Any:
    """It sends what it is told to the addresses that the description has: here to the cloud."""
    return discovery.build(
        "cloudresourcemanager",
        version,
        http=google_auth_httplib2.AuthorizedHttp(
            Credentials(token=cloud.token), http=httplib2.Http(proxy_info=None)
        ),
        client_options={"api_endpoint": f"{cloud.url}/"},
        cache_discovery=False,
        static_discovery=True,
    )


async def within(cloud: Any, work: Callable[[Any], None], version: str = "v1") -> None:
    def run() -> None:
        made = client(cloud, version)
        try:
            work(made)
        finally:
            made.close()

    await asyncio.to_thread(run)


def refused(call: Any, status: int, text: str) -> None:
    with pytest.raises(errors.HttpError) as caught:
        call.execute()
    assert (caught.value.status_code, caught.value.reason) == (status, text)


async def test_a_project_is_made_by_an_operation_of_this_version(make_cloud: Any) -> None:
    cloud = await make_cloud(pace="quick")

    def run(crm: Any) -> None:
        body = {
            "projectId": "made-here",
            "name": "Made here",
            "parent": {"type": "folder", "id": FOLDER},
            "labels": {"a": "b"},
        }
        operation = crm.projects().create(body=body).execute()
        kind = "type.googleapis.com/google.cloudresourcemanager.v1"
        assert operation["name"].startswith("operations/cp.")
        assert operation["metadata"]["@type"] == f"{kind}.ProjectCreationStatus"
        while not operation.get("done"):
            operation = crm.operations().get(name=operation["name"]).execute()
        assert operation["metadata"]["gettable"] is operation["metadata"]["ready"] is True
        made = operation["response"]
        assert made.pop("@type") == f"{kind}.Project"
        assert {key: made[key] for key in body} == body
        assert made["lifecycleState"] == "ACTIVE"
        assert crm.projects().get(projectId="made-here").execute() == made
        by_number = crm.projects().get(projectId=made["projectNumber"]).execute()
        assert by_number == made
        refused(crm.projects().create(body=body), 409, "Requested entity already exists: made-here")

    await within(cloud, run)


async def test_what_is_not_there_and_what_is_closed_are_the_same(cloud: Any) -> None:
    def run(crm: Any) -> None:
        absent = {"projectId": "not-there"}
        denied = (403, "The caller does not have permission")
        refused(crm.projects().get(**absent), *denied)
        refused(crm.projects().delete(**absent), *denied)
        refused(crm.projects().getAncestry(**absent, body={}), *denied)
        refused(crm.projects().update(**absent, body={"name": "x"}), *denied)

    await within(cloud, run)


async def test_a_project_changes_moves_goes_and_comes_back(cloud: Any) -> None:
    def run(crm: Any) -> None:
        mine = {"projectId": PROJECT}
        project = crm.projects().get(**mine).execute()
        project |= {"name": "Another", "labels": {"k": "v"}}
        project["parent"] = {"type": "folder", "id": FOLDER}
        assert crm.projects().update(**mine, body=project).execute() == project
        ancestry = crm.projects().getAncestry(**mine, body={}).execute()["ancestor"]
        assert [one["resourceId"] for one in ancestry] == [
            {"type": "project", "id": PROJECT},
            {"type": "folder", "id": FOLDER},
            {"type": "organization", "id": ORGANIZATION},
        ]
        assert crm.projects().delete(**mine).execute() == {}
        assert crm.projects().get(**mine).execute()["lifecycleState"] == "DELETE_REQUESTED"
        precondition = (400, "Precondition check failed.")
        refused(crm.projects().update(**mine, body=project), *precondition)
        refused(crm.projects().delete(**mine), *precondition)
        assert crm.projects().undelete(**mine, body={}).execute() == {}
        refused(crm.projects().undelete(**mine, body={}), *precondition)
        assert crm.projects().get(**mine).execute() == project

    await within(cloud, run)


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
async def test_lists_by_the_filters_of_the_description(
    cloud: Any, text: str, names: list[str]
) -> None:
    directory = cloud.server.world.projects
    folder = f"folders/{FOLDER}"
    directory.add("red-one", display_name="red", labels={"color": "red"})
    size = {"color": "blue", "size": "big"}
    directory.add("blue-one", display_name="blue", labels=size, parent=folder)
    gone = directory.add("deleted-one", display_name="deleted")
    directory.save({**gone, "state": "DELETE_REQUESTED"})
    directory.save({**directory.require(PROJECT), "display_name": "local"})

    def run(crm: Any) -> None:
        found, request = [], crm.projects().list(filter=text, pageSize=1)
        while request is not None:
            answer = request.execute()
            found += [one["name"] for one in answer.get("projects", [])]
            request = crm.projects().list_next(request, answer)
        assert sorted(found) == names

    await within(cloud, run)


async def test_a_filter_that_is_none_is_refused(cloud: Any) -> None:
    def run(crm: Any) -> None:
        for text in ("color:red", "(name:x", "name:x)", "AND"):
            invalid = (400, "Request contains an invalid argument.")
            refused(crm.projects().list(filter=text), *invalid)

    await within(cloud, run)


async def test_policies_are_those_of_the_newer_version(cloud: Any) -> None:
    def run(crm: Any) -> None:
        projects = crm.projects()
        policy = projects.getIamPolicy(resource=PROJECT, body={}).execute()
        binding = {"role": "roles/viewer", "members": ["user:jane@example.com"]}
        body = {"policy": {**policy, "bindings": [*policy["bindings"], binding]}}
        changed = projects.setIamPolicy(resource=PROJECT, body=body).execute()
        assert binding in changed["bindings"]
        with pytest.raises(errors.HttpError) as caught:
            projects.setIamPolicy(resource=PROJECT, body=body).execute()
        assert caught.value.status_code == 409  # its etag is an old one now
        newer = cloud.request("POST", f"/v3/projects/{PROJECT}:getIamPolicy").json()
        assert newer == changed
        wanted = ["resourcemanager.projects.get"]
        held = projects.testIamPermissions(resource=PROJECT, body={"permissions": wanted})
        assert held.execute() == {"permissions": wanted}

    await within(cloud, run)


async def test_the_organization_and_its_folder(cloud: Any) -> None:
    def run_v1(crm: Any) -> None:
        (found,) = crm.organizations().search(body={}).execute()["organizations"]
        assert found["name"] == f"organizations/{ORGANIZATION}"
        assert crm.organizations().get(name=found["name"]).execute() == found
        owner = found["owner"]["directoryCustomerId"]
        for text, count in (
            (f"domain:{found['displayName']}", 1),
            (f"owner.directorycustomerid:{owner}", 1),
            ("domain:example.com", 0),
        ):
            answer = crm.organizations().search(body={"filter": text}).execute()
            assert len(answer.get("organizations", [])) == count
        policy = crm.organizations().getIamPolicy(resource=found["name"], body={}).execute()
        assert policy["bindings"]

    def run_v2(crm: Any) -> None:
        parent = f"organizations/{ORGANIZATION}"
        (found,) = crm.folders().list(parent=parent).execute()["folders"]
        assert (found["name"], found["parent"]) == (f"folders/{FOLDER}", parent)
        assert found["lifecycleState"] == "ACTIVE"
        assert crm.folders().get(name=found["name"]).execute() == found
        query = {"query": "lifecycleState=ACTIVE"}
        assert crm.folders().search(body=query).execute()["folders"] == [found]

    await within(cloud, run_v1)
    await within(cloud, run_v2, "v2")


async def test_what_is_not_imitated_says_so_by_name(cloud: Any) -> None:
    def run(crm: Any) -> None:
        service = "google.cloudresourcemanager.v1"
        asked = crm.projects().listOrgPolicies(resource=f"projects/{PROJECT}", body={})
        text = "is not implemented by the local cloud."
        refused(asked, 501, f"{service}.Projects/ListOrgPolicies {text}")
        refused(crm.liens().list(), 501, f"{service}.Liens/ListLiens {text}")

    await within(cloud, run)


async def test_an_unknown_field_is_refused_by_its_name(cloud: Any) -> None:
    answer = await asyncio.to_thread(
        cloud.request, "POST", "/v1/projects", json={"projectId": "made-here", "color": "red"}
    )
    assert answer.status_code == 400
    assert 'Unknown name "color"' in answer.json()["error"]["message"]


async def test_lists_tell_callers_of_what_they_may_get(cloud: Any) -> None:
    """So say the descriptions of projects.list, organizations.search and billingAccounts.list."""
    lists = (
        ("GET", "/v1/projects", "projects"),
        ("GET", "/v3/projects:search", "projects"),
        ("POST", "/v1/organizations:search", "organizations"),
        ("POST", "/v2/folders:search", "folders"),
        ("GET", "/v1/billingAccounts", "billingAccounts"),
    )

    def told(member: Member) -> list[str]:
        return [kind for verb, path, kind in lists if member.must(verb, path).get(kind)]

    def run() -> None:
        ann = Member(cloud, "ann")
        every = [kind for _, _, kind in lists]
        assert told(Member.owner(cloud)) == every
        assert told(ann) == []
        grant(cloud, f"projects/{PROJECT}", "roles/viewer", ann.name)
        assert told(ann) == ["projects", "projects"]

    await asyncio.to_thread(run)
