"""Grants by policies: inherited, by custom roles, for deleted and recreated accounts."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from tests.support.callers import Member, grant, make_role, revoke
from tests.support.locations import PROJECT_NAME, ZONE

ORGANIZATION, FOLDER = "organizations/400000000001", "folders/500000000001"
PLACE = f"{PROJECT_NAME}/locations/{ZONE}"
COMPUTE = f"/compute/v1/{PROJECT_NAME}"
DENIED = "The caller does not have permission"


def test_policies_are_inherited(cloud: Any) -> None:
    cloud_owner = Member.owner(cloud)
    body = {"projectId": "in-a-folder", "parent": FOLDER}
    cloud_owner.send_ok("POST", "/v3/projects", json=body)
    for number, resource in enumerate((ORGANIZATION, FOLDER, "projects/in-a-folder")):
        member = Member(cloud, f"m{number}")
        assert member.status_and_message("GET", "/v3/projects/in-a-folder")[0] == 403
        grant(cloud, resource, "roles/browser", member.name)
        assert member.status_and_message("GET", "/v3/projects/in-a-folder")[0] == 200
    in_folder = Member(cloud, "m1")
    assert (
        in_folder.status_and_message("GET", f"/v3/{PROJECT_NAME}")[0] == 403
    )  # that one is not in the folder


def test_project_creator_becomes_owner(cloud: Any) -> None:
    ann = Member(cloud, "ann")
    body = {"projectId": "project-of-ann", "parent": ORGANIZATION}
    assert ann.status_and_message("POST", "/v3/projects", json=body) == (403, DENIED)
    grant(cloud, ORGANIZATION, "roles/resourcemanager.projectCreator", ann.name)
    ann.send_ok("POST", "/v3/projects", json=body)
    policy = ann.send_ok("POST", "/v3/projects/project-of-ann:getIamPolicy", json={})
    assert policy["bindings"] == [{"role": "roles/owner", "members": [ann.name]}]
    permissions = {"permissions": ["resourcemanager.projects.delete", "tpu.nodes.create"]}
    path = "/v3/projects/project-of-ann:testIamPermissions"
    assert ann.send_ok("POST", path, json=permissions) == permissions
    assert Member(cloud, "bob").send_ok("POST", path, json=permissions) == {}


def test_predefined_roles_include_unused_permissions(cloud: Any) -> None:
    """From Google's page of Compute Engine's roles and permissions; snapshots are not
    emulated."""
    create, get, policy = (
        f"compute.snapshots.{verb}" for verb in ("create", "get", "setIamPolicy")
    )
    requested = [create, get, policy]
    granted = {
        "roles/owner": requested,
        "roles/editor": [create, get],
        "roles/viewer": [get],
        "roles/compute.admin": requested,
        "roles/compute.storageAdmin": requested,
        "roles/compute.viewer": [get],
        "roles/compute.networkAdmin": [],
    }
    for number, (role, permissions) in enumerate(granted.items()):
        member = Member(cloud, f"holder-{number}")
        grant(cloud, PROJECT_NAME, role, member.name)
        path, body = f"/v3/{PROJECT_NAME}:testIamPermissions", {"permissions": requested}
        answer = member.send_ok("POST", path, json=body)
        assert answer.get("permissions", []) == permissions, role


def test_enabling_apis_grants_roles_to_service_agents(cloud: Any) -> None:
    """cloud.google.com/iam/docs/service-agents; the editor role unless a policy forbids it."""
    owner = Member.owner(cloud)

    def members(project: str) -> dict[str, list[str]]:
        billing = {"billingAccountName": "billingAccounts/010CA1-010CA1-010CA1"}
        owner.send_ok("POST", "/v3/projects", json={"projectId": project, "parent": ORGANIZATION})
        owner.send_ok("PUT", f"/v1/projects/{project}/billingInfo", json=billing)
        apis = {"serviceIds": ["compute.googleapis.com", "tpu.googleapis.com"]}
        owner.send_ok("POST", f"/v1/projects/{project}/services:batchEnable", json=apis)
        policy = owner.send_ok("POST", f"/v3/projects/{project}:getIamPolicy", json={})
        return {binding["role"]: binding["members"] for binding in policy["bindings"]}

    number = owner.send_ok("GET", "/v1/projects/local-project")["projectNumber"]
    bindings, number = members("first-project"), str(int(number) + 1)
    agents = ("compute-system", "cloud-tpu")
    for role, agent in zip(
        ("roles/compute.serviceAgent", "roles/tpu.serviceAgent"), agents, strict=True
    ):
        assert bindings[role] == [
            f"serviceAccount:service-{number}@{agent}.iam.gserviceaccount.com"
        ]
    default = f"serviceAccount:{number}-compute@developer.gserviceaccount.com"
    assert default in bindings["roles/editor"]
    machine = Member(cloud, default)
    assert machine.status_and_message("GET", "/v3/projects/first-project")[0] == 200
    constraint = "iam.automaticIamGrantsForDefaultServiceAccounts"
    owner.send_ok("PATCH", "/_local/settings", json={"policies": [constraint]})
    assert not any("-compute@" in member for member in members("second-project")["roles/editor"])


def test_custom_role_grants_while_active(cloud: Any) -> None:
    ann, owner = Member(cloud, "ann"), Member.owner(cloud)
    role = make_role(cloud, "looker", ["tpu.nodes.list"])
    grant(cloud, PROJECT_NAME, role, ann.name)
    path = f"/v2/{PLACE}/nodes"
    assert ann.status_and_message("GET", path)[0] == 200
    make_role(cloud, "looker", ["tpu.nodes.get"])
    assert ann.status_and_message("GET", path)[0] == 403
    make_role(cloud, "looker", ["tpu.nodes.list"])
    owner.send_ok("PATCH", f"/v1/{role}?updateMask=stage", json={"stage": "DISABLED"})
    assert ann.status_and_message("GET", path)[0] == 403
    owner.send_ok("PATCH", f"/v1/{role}?updateMask=stage", json={"stage": "GA"})
    owner.send_ok("DELETE", f"/v1/{role}")
    assert ann.status_and_message("GET", path)[0] == 403
    owner.send_ok("POST", f"/v1/{role}:undelete", json={})
    assert ann.status_and_message("GET", path)[0] == 200


def test_disabled_or_deleted_account_is_unauthenticated(cloud: Any) -> None:
    """google/api/error_reason.proto, ACCOUNT_STATE_INVALID."""
    owner = Member.owner(cloud)
    account = owner.send_ok(
        "POST", f"/v1/{PROJECT_NAME}/serviceAccounts", json={"accountId": "worker"}
    )
    name, member = account["name"], f"serviceAccount:{account['email']}"
    grant(cloud, PROJECT_NAME, "roles/tpu.viewer", member)
    worker, path = Member(cloud, member), f"/v2/{PLACE}/nodes"

    def refused() -> bool:
        answer = worker.send("GET", path)
        error = answer.json()["error"]
        if answer.status_code == 401 and error.get("details"):
            assert error["details"][0]["reason"] == "ACCOUNT_STATE_INVALID"
            assert error["details"][0]["metadata"]["email"] == account["email"]
        return bool(answer.status_code == 401)

    assert worker.status_and_message("GET", path)[0] == 200
    owner.send_ok("POST", f"/v1/{name}:disable", json={})
    assert refused()
    with pytest.raises(grpc.RpcError):
        channel = cloud.channel(worker.token)
        channel.unary_unary("/google.cloud.tpu.v2.Tpu/ListNodes")(b"")
    owner.send_ok("POST", f"/v1/{name}:enable", json={})
    assert worker.status_and_message("GET", path)[0] == 200
    owner.send_ok("DELETE", f"/v1/{name}")
    assert refused()
    owner.send_ok("POST", f"/v1/{PROJECT_NAME}/serviceAccounts", json={"accountId": "worker"})
    assert refused()  # the token belongs to the deleted account
    renewed = Member(cloud, member)
    assert renewed.status_and_message("GET", path)[0] == 403  # and has none of its grants


def test_policy_changes_propagate_after_delay(cloud: Any) -> None:
    """With the setting `propagation`: reads show changes immediately, enforcement lags."""
    ann, owner = Member(cloud, "ann"), Member.owner(cloud)
    path, check = f"/v2/{PLACE}/nodes", f"/v3/{PROJECT_NAME}:testIamPermissions"
    body = {"permissions": ["tpu.nodes.list"]}
    owner.send_ok("PATCH", "/_local/settings", json={"propagation": 10_000})
    grant(cloud, PROJECT_NAME, "roles/tpu.viewer", ann.name)
    policy = owner.send_ok("POST", f"/v3/{PROJECT_NAME}:getIamPolicy", json={})
    assert {"role": "roles/tpu.viewer", "members": [ann.name]} in policy["bindings"]
    assert ann.status_and_message("GET", path)[0] == 403
    assert ann.send_ok("POST", check, json=body) == {}
    owner.send_ok("PATCH", "/_local/settings", json={"propagation": 0})
    assert ann.status_and_message("GET", path)[0] == 200
    grant(cloud, PROJECT_NAME, "roles/browser", ann.name)  # clears the pending change
    owner.send_ok("PATCH", "/_local/settings", json={"propagation": 10_000})
    revoke(cloud, PROJECT_NAME, "roles/tpu.viewer", ann.name)
    assert ann.status_and_message("GET", path)[0] == 200
    assert ann.send_ok("POST", check, json=body) == body


def test_denied_permissions_apply_to_owner(cloud: Any) -> None:
    owner = Member.owner(cloud)
    owner.send_ok("PATCH", "/_local/settings", json={"denied_permissions": ["tpu.nodes.list"]})
    refused = owner.status_and_message("GET", f"/v2/{PLACE}/nodes")
    assert refused[0] == 403 and "'tpu.nodes.list' denied" in refused[1]
    assert owner.status_and_message("GET", f"/v2/{PLACE}/acceleratorTypes")[0] == 200


def test_scopes_limit_machine_token(cloud: Any) -> None:
    number = Member.owner(cloud).send_ok("GET", "/v1/projects/local-project")["projectNumber"]
    default = f"serviceAccount:{number}-compute@developer.gserviceaccount.com"
    scope = "https://www.googleapis.com/auth/compute.readonly"
    machine = Member(cloud, default, scopes=[scope])
    assert machine.status_and_message("GET", f"{COMPUTE}/zones/{ZONE}/instances")[0] == 200
    for verb, path in (("GET", f"/v2/{PLACE}/nodes"), ("POST", f"{COMPUTE}/global/networks")):
        answer = machine.send(verb, path, **({"json": {"name": "n"}} if verb == "POST" else {}))
        error = answer.json()["error"]
        assert error["message"] == "Request had insufficient authentication scopes."
        assert error["details"][0]["reason"] == "ACCESS_TOKEN_SCOPE_INSUFFICIENT"


def test_machine_token_has_instance_scopes(cloud: Any) -> None:
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
        operation = owner.send_ok("POST", f"{COMPUTE}/zones/{ZONE}/instances", json=instance)
        path = f"{COMPUTE}/zones/{ZONE}/operations/{operation['name']}/wait"
        assert owner.send_ok("POST", path, json={})["status"] == "DONE"
    tokens = {
        machine: spec.access_token
        for machine, spec in cloud.host.specs.items()
        if machine.endswith(("narrow", "wide"))
    }
    assert len(tokens) == 2
    for machine, token in tokens.items():
        answer = cloud.request("GET", f"{COMPUTE}/zones/{ZONE}/instances", token=token)
        assert answer.status_code == (403 if machine.endswith("narrow") else 200)
