"""Projects, service accounts and Compute Engine through their official clients."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import (
    compute_v1,
    iam_admin_v1,
    resourcemanager_v3,
)
from google.iam.v1 import iam_policy_pb2, policy_pb2

from tests.support.locations import PROJECT
from tpuctl.local_cloud import remote_control

NAME = f"projects/{PROJECT}"

both = pytest.mark.parametrize("transport", ["grpc", "rest"])


def projects(cloud: Any, transport: str = "rest") -> Any:
    return cloud.client(resourcemanager_v3.ProjectsClient, transport)


def accounts(cloud: Any) -> Any:
    return cloud.client(iam_admin_v1.IAMClient, "grpc")


@both
def test_new_cloud_has_one_project(new_cloud: Any, transport: str) -> None:
    project = projects(new_cloud, transport).get_project(name=NAME, timeout=60)
    assert project.project_id == PROJECT
    assert project.state is resourcemanager_v3.Project.State.ACTIVE
    by_number = projects(new_cloud, transport).get_project(name=project.name, timeout=60)
    assert by_number == project


@both
def test_project_create_search_delete(cloud: Any, transport: str) -> None:
    client = projects(cloud, transport)
    requested = {"project_id": "made-here", "display_name": "Made", "labels": {"a": "b"}}
    created = client.create_project(request={"project": requested}, timeout=60).result(timeout=60)
    assert (created.project_id, created.display_name, dict(created.labels)) == (
        "made-here",
        "Made",
        {"a": "b"},
    )
    matching = list(client.search_projects(query="id:made-here", timeout=60))
    assert matching == [created]
    assert not list(client.search_projects(query="id:missing", timeout=60))
    with pytest.raises(exceptions.Conflict):
        client.create_project(request={"project": requested}, timeout=60)
    with pytest.raises(exceptions.Forbidden):
        client.get_project(name="projects/missing-project", timeout=60)
    with pytest.raises(exceptions.BadRequest):
        client.create_project(request={"project": {"project_id": "No"}}, timeout=60)
    deleted = client.delete_project(name=created.name, timeout=60).result(timeout=60)
    assert deleted.state is resourcemanager_v3.Project.State.DELETE_REQUESTED


@both
def test_project_labels_are_validated_and_updated(cloud: Any, transport: str) -> None:
    client = projects(cloud, transport)

    def change(labels: dict[str, str], *paths: str, etag: str = "") -> dict[str, str]:
        body = {"name": NAME, "labels": labels, "etag": etag}
        request = {"project": body, "update_mask": {"paths": paths}}
        return dict(client.update_project(request=request, timeout=60).result(20).labels)

    before = client.get_project(name=NAME, timeout=60)
    assert change({"a": "1", "b_b": "x-2"}, "labels") == {"a": "1", "b_b": "x-2"}
    assert change({"a": "3", "c": "no"}, "labels.a") == {"a": "3", "b_b": "x-2"}
    assert change({}, "labels.b_b") == {"a": "3"}
    for labels in ({"A": "x"}, {"1": "x"}, {"a": "X"}, {"a": "x/y"}, {"a": "x" * 64}):
        with pytest.raises((exceptions.BadRequest, exceptions.InvalidArgument)) as caught:
            change(labels, "labels")
        assert "field [project.labels] has issue [Label" in caught.value.message
        new_project = {"project_id": "never-made", "labels": labels}
        with pytest.raises((exceptions.BadRequest, exceptions.InvalidArgument)):
            client.create_project(request={"project": new_project}, timeout=60)
    with pytest.raises((exceptions.Conflict, exceptions.Aborted)):
        change({"a": "4"}, "labels", etag=before.etag)
    assert dict(client.get_project(name=NAME, timeout=60).labels) == {"a": "3"}


@both
def test_project_policies(cloud: Any, transport: str) -> None:
    client = projects(cloud, transport)
    policy = client.get_iam_policy(resource=NAME, timeout=60)
    owners = [binding for binding in policy.bindings if binding.role == "roles/owner"]
    assert [list(binding.members) for binding in owners] == [["user:owner@local-cloud.invalid"]]
    old = policy_pb2.Policy()
    old.CopyFrom(policy)
    policy.bindings.add(role="roles/tpu.viewer", members=["serviceAccount:a@b.example"])
    request = iam_policy_pb2.SetIamPolicyRequest(resource=NAME, policy=policy)
    changed = client.set_iam_policy(request=request, timeout=60)
    assert changed == client.get_iam_policy(resource=NAME, timeout=60)
    assert changed.etag != old.etag
    stale = iam_policy_pb2.SetIamPolicyRequest(resource=NAME, policy=old)
    with pytest.raises(exceptions.Conflict) as caught:
        client.set_iam_policy(request=stale, timeout=60)
    assert "There were concurrent policy changes" in caught.value.message
    permissions = ["tpu.nodes.create", "storage.buckets.create"]
    answer = client.test_iam_permissions(resource=NAME, permissions=permissions, timeout=60)
    assert list(answer.permissions) == permissions


def test_service_accounts(cloud: Any) -> None:
    token = cloud.in_loop(
        cloud.server.registry.access.token_for, f"stack-tpu@{PROJECT}.iam.gserviceaccount.com"
    )

    client = accounts(cloud)
    request = {
        "name": NAME,
        "account_id": "stack-tpu",
        "service_account": {"display_name": "The stack's", "description": "tpuctl-stack=s"},
    }
    account = client.create_service_account(request=request, timeout=60)
    assert account.email == f"stack-tpu@{PROJECT}.iam.gserviceaccount.com"
    assert account.name == f"{NAME}/serviceAccounts/{account.email}"
    for name in (account.name, f"projects/-/serviceAccounts/{account.email}"):
        assert client.get_service_account(name=name, timeout=60) == account
    assert list(client.list_service_accounts(name=NAME, timeout=60)) == [account]
    with pytest.raises(exceptions.AlreadyExists):
        client.create_service_account(request=request, timeout=60)
    with pytest.raises(exceptions.InvalidArgument):
        client.create_service_account(request={**request, "account_id": "x"}, timeout=60)
    policy = client.get_iam_policy(request={"resource": account.name}, timeout=60)
    policy.bindings.add(role="roles/iam.serviceAccountUser", members=["user:a@b.example"])
    client.set_iam_policy(request={"resource": account.name, "policy": policy}, timeout=60)
    with pytest.raises(exceptions.Aborted):
        client.set_iam_policy(request={"resource": account.name, "policy": policy}, timeout=60)
    client.delete_service_account(name=account.name, timeout=60)
    with pytest.raises(exceptions.NotFound):
        client.get_service_account(name=account.name, timeout=60)
    assert cloud.request("GET", f"/v3/{NAME}", token=token).status_code == 401


def test_iam_requires_enabled_api(new_cloud: Any) -> None:
    with pytest.raises(exceptions.PermissionDenied) as caught:
        list(accounts(new_cloud).list_service_accounts(name=NAME, timeout=60))
    assert caught.value.reason == "SERVICE_DISABLED"


def test_networks_and_firewalls(cloud: Any) -> None:
    remote_control.change_settings(cloud.local_cloud, pace="quick")

    def done(operation: Any) -> Any:
        ended = operations.wait(project=PROJECT, operation=operation.name)
        assert ended.status is compute_v1.Operation.Status.DONE
        return ended

    operations = cloud.client(compute_v1.GlobalOperationsClient)
    networks = cloud.client(compute_v1.NetworksClient)
    firewalls = cloud.client(compute_v1.FirewallsClient)
    assert [network.name for network in networks.list(project=PROJECT)] == ["default"]
    rules = {rule.name for rule in firewalls.list(project=PROJECT)}
    assert "default-allow-ssh" in rules
    network = compute_v1.Network(
        name="stack-net", auto_create_subnetworks=True, description="tpuctl-stack=s"
    )
    started = networks.insert_unary(project=PROJECT, network_resource=network)
    assert started.status is compute_v1.Operation.Status.RUNNING
    with pytest.raises(exceptions.Conflict):
        networks.insert_unary(project=PROJECT, network_resource=network)
    assert not done(started).error.errors
    network_found = networks.get(project=PROJECT, network="stack-net")
    assert network_found.description == "tpuctl-stack=s"
    assert network_found.self_link.endswith(f"projects/{PROJECT}/global/networks/stack-net")
    rule = compute_v1.Firewall(
        name="stack-ssh",
        network=network_found.self_link,
        allowed=[compute_v1.Allowed(I_p_protocol="tcp", ports=["22"])],
        source_ranges=["203.0.113.7/32"],
        target_tags=["stack"],
    )
    done(firewalls.insert_unary(project=PROJECT, firewall_resource=rule))
    firewall = firewalls.get(project=PROJECT, firewall="stack-ssh")
    assert (firewall.priority, firewall.direction) == (1000, "INGRESS")
    assert list(firewall.source_ranges) == ["203.0.113.7/32"]
    listed = firewalls.list(
        request=compute_v1.ListFirewallsRequest(project=PROJECT, filter="name = stack-ssh")
    )
    assert [rule.name for rule in listed] == ["stack-ssh"]
    changed = compute_v1.Firewall(source_ranges=["198.51.100.1/32"])
    done(firewalls.patch_unary(project=PROJECT, firewall="stack-ssh", firewall_resource=changed))
    firewall = firewalls.get(project=PROJECT, firewall="stack-ssh")
    assert list(firewall.source_ranges) == ["198.51.100.1/32"]
    assert list(firewall.target_tags) == ["stack"]
    refused = done(networks.delete_unary(project=PROJECT, network="stack-net"))
    assert [error.code for error in refused.error.errors] == ["RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"]
    assert not done(firewalls.delete_unary(project=PROJECT, firewall="stack-ssh")).error.errors
    assert not done(networks.delete_unary(project=PROJECT, network="stack-net")).error.errors
    with pytest.raises(exceptions.NotFound) as caught:
        networks.get(project=PROJECT, network="stack-net")
    assert (
        f"The resource 'projects/{PROJECT}/global/networks/stack-net' was not found"
        in caught.value.message
    )
    with pytest.raises(exceptions.NotFound):
        firewalls.delete_unary(project=PROJECT, firewall="stack-ssh")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("networks", {"name": "Bad Name"}, 400),
        ("networks", {}, 400),
        ("networks", {"name": "default"}, 409),
        ("networks", {"name": "n", "IPv4Range": "10.0.0.0/8"}, 400),
        ("networks", {"name": "n", "noSuch": 1}, 400),
        ("firewalls", {"name": "f"}, 400),
        ("firewalls", {"name": "f", "network": "nowhere", "allowed": [{}]}, 404),
        ("firewalls", {"name": "f", "allowed": [{}], "sourceRanges": ["x"]}, 400),
        ("firewalls", {"name": "f", "allowed": [{}], "denied": [{}]}, 400),
    ],
)
def test_invalid_networks_and_firewalls_are_rejected(
    cloud: Any, path: str, body: dict[str, Any], status: int
) -> None:
    answer = cloud.request("POST", f"/compute/v1/{NAME}/global/{path}", json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["errors"][0]["reason"]


def test_compute_is_served_at_root_path(cloud: Any) -> None:
    answer = cloud.request("GET", f"/{NAME}/global/networks/default")
    assert answer.json()["name"] == "default"


def test_network_insert_is_idempotent_by_request_id(cloud: Any) -> None:
    path = f"/compute/v1/{NAME}/global/networks?requestId=7c8f0e7e-0000-4000-8000-000000000001"
    names = {cloud.request("POST", path, json={"name": "once"}).json()["name"] for _ in range(2)}
    assert len(names) == 1


def test_auto_networks_have_subnetworks(cloud: Any) -> None:
    client = cloud.client(compute_v1.SubnetworksClient)
    rows = list(client.list(project=PROJECT, region="europe-west4"))
    assert [row.name for row in rows] == ["default"]
    assert client.get(project=PROJECT, region="europe-west4", subnetwork="default") == rows[0]
    with pytest.raises(exceptions.NotFound):
        client.get(project=PROJECT, region="europe-west4", subnetwork="nowhere")


def test_project_metadata_requires_fingerprint(cloud: Any) -> None:
    client = cloud.client(compute_v1.ProjectsClient)
    first = client.get(project=PROJECT).common_instance_metadata
    base64.urlsafe_b64decode(first.fingerprint)
    new_metadata = compute_v1.Metadata(
        fingerprint=first.fingerprint,
        items=[compute_v1.Items(key="ssh-keys", value="u:ssh-ed25519 AAA u")],
    )
    client.set_common_instance_metadata_unary(project=PROJECT, metadata_resource=new_metadata)
    metadata = client.get(project=PROJECT).common_instance_metadata
    assert [(item.key, item.value) for item in metadata.items] == [
        ("ssh-keys", "u:ssh-ed25519 AAA u")
    ]
    assert metadata.fingerprint != first.fingerprint
    with pytest.raises(exceptions.PreconditionFailed):
        client.set_common_instance_metadata_unary(project=PROJECT, metadata_resource=new_metadata)


def test_disabled_compute_api_error(new_cloud: Any) -> None:
    answer = new_cloud.request("GET", f"/compute/v1/{NAME}/global/networks")
    error = answer.json()["error"]
    assert (error["code"], error["errors"][0]["reason"]) == (403, "accessNotConfigured")
    assert error["details"][0]["reason"] == "SERVICE_DISABLED"
