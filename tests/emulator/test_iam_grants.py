"""Policies decide: inherited, through custom roles, for accounts that come and go."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from tests.support.members import Member, grant, in_thread, make_role, revoke
from tests.support.places import PROJECT_NAME, ZONE

ORGANIZATION, FOLDER = "organizations/400000000001", "folders/500000000001"
PLACE = f"{PROJECT_NAME}/locations/{ZONE}"
COMPUTE = f"/compute/v1/{PROJECT_NAME}"
DENIED = "The caller does not have permission"


@in_thread
def test_policies_are_inherited_from_folder_and_organization(cloud: Any) -> None:
    cloud_owner = Member.owner(cloud)
    body = {"projectId": "in-a-folder", "parent": FOLDER}
    cloud_owner.must("POST", "/v3/projects", json=body)
    for number, resource in enumerate((ORGANIZATION, FOLDER, "projects/in-a-folder")):
        member = Member(cloud, f"m{number}")
        assert member.told("GET", "/v3/projects/in-a-folder")[0] == 403
        grant(cloud, resource, "roles/browser", member.name)
        assert member.told("GET", "/v3/projects/in-a-folder")[0] == 200
    in_folder = Member(cloud, "m1")
    assert in_folder.told("GET", f"/v3/{PROJECT_NAME}")[0] == 403  # that one is not in the folder


@in_thread
def test_whoever_makes_a_project_owns_it(cloud: Any) -> None:
    ann = Member(cloud, "ann")
    body = {"projectId": "project-of-ann", "parent": ORGANIZATION}
    assert ann.told("POST", "/v3/projects", json=body) == (403, DENIED)
    grant(cloud, ORGANIZATION, "roles/resourcemanager.projectCreator", ann.name)
    ann.must("POST", "/v3/projects", json=body)
    policy = ann.must("POST", "/v3/projects/project-of-ann:getIamPolicy", json={})
    assert policy["bindings"] == [{"role": "roles/owner", "members": [ann.name]}]
    asked = {"permissions": ["resourcemanager.projects.delete", "tpu.nodes.create"]}
    path = "/v3/projects/project-of-ann:testIamPermissions"
    assert ann.must("POST", path, json=asked) == asked
    assert Member(cloud, "bob").must("POST", path, json=asked) == {}


@in_thread
def test_predefined_roles_have_what_no_method_here_needs(cloud: Any) -> None:
    """As Google's page of Compute Engine's roles and permissions has them; snapshots are not
    imitated."""
    create, get, policy = (
        f"compute.snapshots.{verb}" for verb in ("create", "get", "setIamPolicy")
    )
    asked = [create, get, policy]
    granted = {
        "roles/owner": asked,
        "roles/editor": [create, get],
        "roles/viewer": [get],
        "roles/compute.admin": asked,
        "roles/compute.storageAdmin": asked,
        "roles/compute.viewer": [get],
        "roles/compute.networkAdmin": [],
    }
    for number, (role, permissions) in enumerate(granted.items()):
        member = Member(cloud, f"holder-{number}")
        grant(cloud, PROJECT_NAME, role, member.name)
        path, body = f"/v3/{PROJECT_NAME}:testIamPermissions", {"permissions": asked}
        answer = member.must("POST", path, json=body)
        assert answer.get("permissions", []) == permissions, role


@in_thread
def test_enabling_apis_gives_googles_accounts_their_roles(cloud: Any) -> None:
    """cloud.google.com/iam/docs/service-agents; the editor unless a policy forbids it."""
    owner = Member.owner(cloud)

    def members(project: str) -> dict[str, list[str]]:
        billing = {"billingAccountName": "billingAccounts/010CA1-010CA1-010CA1"}
        owner.must("POST", "/v3/projects", json={"projectId": project, "parent": ORGANIZATION})
        owner.must("PUT", f"/v1/projects/{project}/billingInfo", json=billing)
        apis = {"serviceIds": ["compute.googleapis.com", "tpu.googleapis.com"]}
        owner.must("POST", f"/v1/projects/{project}/services:batchEnable", json=apis)
        policy = owner.must("POST", f"/v3/projects/{project}:getIamPolicy", json={})
        return {one["role"]: one["members"] for one in policy["bindings"]}

    number = owner.must("GET", "/v1/projects/local-project")["projectNumber"]
    found, number = members("first-project"), str(int(number) + 1)
    agents = ("compute-system", "cloud-tpu")
    for role, agent in zip(
        ("roles/compute.serviceAgent", "roles/tpu.serviceAgent"), agents, strict=True
    ):
        assert found[role] == [f"serviceAccount:service-{number}@{agent}.iam.gserviceaccount.com"]
    default = f"serviceAccount:{number}-compute@developer.gserviceaccount.com"
    assert default in found["roles/editor"]
    machine = Member(cloud, default)
    assert machine.told("GET", "/v3/projects/first-project")[0] == 200
    constraint = "iam.automaticIamGrantsForDefaultServiceAccounts"
    owner.must("PATCH", "/_local/settings", json={"policies": [constraint]})
    assert not any("-compute@" in one for one in members("second-project")["roles/editor"])


@in_thread
def test_custom_roles_count_while_they_are_there(cloud: Any) -> None:
    ann, owner = Member(cloud, "ann"), Member.owner(cloud)
    role = make_role(cloud, "looker", ["tpu.nodes.list"])
    grant(cloud, PROJECT_NAME, role, ann.name)
    path = f"/v2/{PLACE}/nodes"
    assert ann.told("GET", path)[0] == 200
    make_role(cloud, "looker", ["tpu.nodes.get"])
    assert ann.told("GET", path)[0] == 403
    make_role(cloud, "looker", ["tpu.nodes.list"])
    owner.must("PATCH", f"/v1/{role}?updateMask=stage", json={"stage": "DISABLED"})
    assert ann.told("GET", path)[0] == 403
    owner.must("PATCH", f"/v1/{role}?updateMask=stage", json={"stage": "GA"})
    owner.must("DELETE", f"/v1/{role}")
    assert ann.told("GET", path)[0] == 403
    owner.must("POST", f"/v1/{role}:undelete", json={})
    assert ann.told("GET", path)[0] == 200


@in_thread
def test_accounts_that_are_disabled_or_deleted_are_nobody(cloud: Any) -> None:
    """google/api/error_reason.proto, ACCOUNT_STATE_INVALID."""
    owner = Member.owner(cloud)
    made = owner.must("POST", f"/v1/{PROJECT_NAME}/serviceAccounts", json={"accountId": "worker"})
    name, member = made["name"], f"serviceAccount:{made['email']}"
    grant(cloud, PROJECT_NAME, "roles/tpu.viewer", member)
    worker, path = Member(cloud, member), f"/v2/{PLACE}/nodes"

    def refused() -> bool:
        answer = worker.ask("GET", path)
        error = answer.json()["error"]
        if answer.status_code == 401 and error.get("details"):
            assert error["details"][0]["reason"] == "ACCOUNT_STATE_INVALID"
            assert error["details"][0]["metadata"]["email"] == made["email"]
        return bool(answer.status_code == 401)

    assert worker.told("GET", path)[0] == 200
    owner.must("POST", f"/v1/{name}:disable", json={})
    assert refused()
    with pytest.raises(grpc.RpcError):
        channel = cloud.channel(worker.token)
        channel.unary_unary("/google.cloud.tpu.v2.Tpu/ListNodes")(b"")
    owner.must("POST", f"/v1/{name}:enable", json={})
    assert worker.told("GET", path)[0] == 200
    owner.must("DELETE", f"/v1/{name}")
    assert refused()
    owner.must("POST", f"/v1/{PROJECT_NAME}/serviceAccounts", json={"accountId": "worker"})
    assert refused()  # the new account of that name is another one
    renewed = Member(cloud, member)
    assert renewed.told("GET", path)[0] == 403  # and has none of its grants


@in_thread
def test_grants_are_felt_when_they_have_spread(cloud: Any) -> None:
    """With the setting `propagation`: shown at once, felt later, by revocations too."""
    ann, owner = Member(cloud, "ann"), Member.owner(cloud)
    path, check = f"/v2/{PLACE}/nodes", f"/v3/{PROJECT_NAME}:testIamPermissions"
    asked = {"permissions": ["tpu.nodes.list"]}
    owner.must("PATCH", "/_local/settings", json={"propagation": 10_000})
    grant(cloud, PROJECT_NAME, "roles/tpu.viewer", ann.name)
    policy = owner.must("POST", f"/v3/{PROJECT_NAME}:getIamPolicy", json={})
    assert {"role": "roles/tpu.viewer", "members": [ann.name]} in policy["bindings"]
    assert ann.told("GET", path)[0] == 403
    assert ann.must("POST", check, json=asked) == {}
    owner.must("PATCH", "/_local/settings", json={"propagation": 0})
    assert ann.told("GET", path)[0] == 200
    grant(cloud, PROJECT_NAME, "roles/browser", ann.name)  # what was waited for is forgotten
    owner.must("PATCH", "/_local/settings", json={"propagation": 10_000})
    revoke(cloud, PROJECT_NAME, "roles/tpu.viewer", ann.name)
    assert ann.told("GET", path)[0] == 200
    assert ann.must("POST", check, json=asked) == asked


@in_thread
def test_the_owner_is_refused_what_the_settings_deny(cloud: Any) -> None:
    owner = Member.owner(cloud)
    owner.must("PATCH", "/_local/settings", json={"denied_permissions": ["tpu.nodes.list"]})
    told = owner.told("GET", f"/v2/{PLACE}/nodes")
    assert told[0] == 403 and "'tpu.nodes.list' denied" in told[1]
    assert owner.told("GET", f"/v2/{PLACE}/acceleratorTypes")[0] == 200


@in_thread
def test_scopes_limit_a_machines_token(cloud: Any) -> None:
    number = Member.owner(cloud).must("GET", "/v1/projects/local-project")["projectNumber"]
    default = f"serviceAccount:{number}-compute@developer.gserviceaccount.com"
    scope = "https://www.googleapis.com/auth/compute.readonly"
    machine = Member(cloud, default, scopes=[scope])
    assert machine.told("GET", f"{COMPUTE}/zones/{ZONE}/instances")[0] == 200
    for verb, path in (("GET", f"/v2/{PLACE}/nodes"), ("POST", f"{COMPUTE}/global/networks")):
        answer = machine.ask(verb, path, **({"json": {"name": "n"}} if verb == "POST" else {}))
        error = answer.json()["error"]
        assert error["message"] == "Request had insufficient authentication scopes."
        assert error["details"][0]["reason"] == "ACCESS_TOKEN_SCOPE_INSUFFICIENT"


@in_thread
def test_a_machines_token_has_the_scopes_that_it_was_made_with(cloud: Any) -> None:
    owner, source = Member.owner(cloud), "projects/debian-cloud/global/images/family/debian-12"
    for name, scope in (("narrow", "logging.write"), ("wide", "cloud-platform")):
        scopes = [f"https://www.googleapis.com/auth/{scope}"]
        instance = {
            "name": name,
            "machineType": f"zones/{ZONE}/machineTypes/n1-standard-1",
            "disks": [{"boot": True, "initializeParams": {"sourceImage": source}}],
            "networkInterfaces": [{"network": "global/networks/default"}],
            "serviceAccounts": [{"email": "default", "scopes": scopes}],
        }
        made = owner.must("POST", f"{COMPUTE}/zones/{ZONE}/instances", json=instance)
        path = f"{COMPUTE}/zones/{ZONE}/operations/{made['name']}/wait"
        assert owner.must("POST", path, json={})["status"] == "DONE"
    tokens = {
        machine: spec.access_token
        for machine, spec in cloud.host.specs.items()
        if machine.endswith(("narrow", "wide"))
    }
    assert len(tokens) == 2
    for machine, token in tokens.items():
        answer = cloud.request("GET", f"{COMPUTE}/zones/{ZONE}/instances", token=token)
        assert answer.status_code == (403 if machine.endswith("narrow") else 200)
