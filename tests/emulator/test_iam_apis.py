"""Platform APIs and Compute Engine deny calls by policy, in Google's wording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import iam_admin_v1, tpu_v2
from google.rpc import error_details_pb2

from tests.support.callers import Member, grant, make_role, revoke
from tests.support.locations import PROJECT_NAME, ZONE

ORGANIZATION, FOLDER = "organizations/400000000001", "folders/500000000001"
PLACE = f"{PROJECT_NAME}/locations/{ZONE}"
COMPUTE = f"/compute/v1/{PROJECT_NAME}"
DENIED = "The caller does not have permission"


@pytest.fixture
def as_member(cloud: Any) -> Callable[[Member, Any], Any]:
    """An official gRPC client with a member's token."""

    def make(member: Member, client: Any) -> Any:
        transport = client.get_transport_class("grpc")
        return client(transport=transport(channel=cloud.channel(member.token)))

    return make


def info_of(error: Any) -> Any:
    [info] = [detail for detail in error.details if isinstance(detail, error_details_pb2.ErrorInfo)]
    return info


def test_tpu_error_names_permission_and_resource(cloud: Any, as_member: Any) -> None:
    ann = Member(cloud, "ann")
    client = as_member(ann, tpu_v2.TpuClient)
    name = f"{PLACE}/nodes/n"
    for call, permission, resource in (
        (lambda: client.get_node(name=name), "tpu.nodes.get", name),
        (lambda: client.delete_node(name=name), "tpu.nodes.delete", name),
        (lambda: client.list_nodes(parent=PLACE), "tpu.nodes.list", PLACE),
    ):
        with pytest.raises(exceptions.PermissionDenied) as caught:
            call()
        assert caught.value.message == (
            f"Permission '{permission}' denied on resource '//tpu.googleapis.com/{resource}' "
            "(or it may not exist)."
        )
        info = info_of(caught.value)
        assert (info.reason, info.domain) == ("IAM_PERMISSION_DENIED", "tpu.googleapis.com")
        assert dict(info.metadata) == {"permission": permission, "resource": resource}
    answer = ann.send("GET", f"/v2/{name}").json()["error"]
    assert (answer["code"], answer["status"]) == (403, "PERMISSION_DENIED")
    assert answer["details"][0]["metadata"]["permission"] == "tpu.nodes.get"
    grant(cloud, PROJECT_NAME, "roles/tpu.viewer", ann.name)
    assert list(client.list_nodes(parent=PLACE)) == []
    with pytest.raises(exceptions.NotFound):
        client.get_node(name=name)
    with pytest.raises(exceptions.PermissionDenied):
        client.delete_node(name=name)


def test_compute_error_names_permission_and_resource(cloud: Any) -> None:
    ann = Member(cloud, "ann")
    instance = f"{PROJECT_NAME}/zones/{ZONE}/instances/vm"
    firewall = {"name": "fw", "network": "global/networks/default", "allowed": []}
    for verb, path, permission, resource in (
        ("GET", f"/compute/v1/{instance}", "instances.get", instance),
        ("DELETE", f"/compute/v1/{instance}", "instances.delete", instance),
        ("GET", f"{COMPUTE}/zones/{ZONE}/instances", "instances.list", PROJECT_NAME),
        ("GET", f"{COMPUTE}/aggregated/disks", "disks.list", PROJECT_NAME),
        ("GET", COMPUTE, "projects.get", PROJECT_NAME),
        (
            "GET",
            f"{COMPUTE}/global/networks/n",
            "networks.get",
            f"{PROJECT_NAME}/global/networks/n",
        ),
        (
            "POST",
            f"{COMPUTE}/global/firewalls",
            "firewalls.create",
            f"{PROJECT_NAME}/global/firewalls/fw",
        ),
        (
            "GET",
            f"{COMPUTE}/regions/europe-west4/addresses/a",
            "addresses.get",
            f"{PROJECT_NAME}/regions/europe-west4/addresses/a",
        ),
        (
            "GET",
            f"{COMPUTE}/zones/{ZONE}/operations/o",
            "zoneOperations.get",
            f"{PROJECT_NAME}/zones/{ZONE}/operations/o",
        ),
        (
            "GET",
            f"{COMPUTE}/zones/{ZONE}/machineTypes/n1-standard-1",
            "machineTypes.get",
            f"{PROJECT_NAME}/zones/{ZONE}/machineTypes/n1-standard-1",
        ),
    ):
        body = {"json": firewall} if verb == "POST" else {}
        answer = ann.send(verb, path, **body)
        error = answer.json()["error"]
        assert (answer.status_code, error["message"]) == (
            403,
            f"Required 'compute.{permission}' permission for '{resource}'",
        )
        assert error["errors"][0]["reason"] == "forbidden"
    public = "/compute/v1/projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"
    assert ann.send("GET", public).ok  # readable by anyone


INSTANCE = {
    "name": "vm",
    "machineType": f"zones/{ZONE}/machineTypes/n1-standard-1",
    "metadata": {"items": [{"key": "a", "value": "b"}]},
    "tags": {"items": ["t"]},
    "labels": {"l": "v"},
    "disks": [
        {
            "boot": True,
            "initializeParams": {
                "sourceImage": "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"
            },
        }
    ],
    "networkInterfaces": [
        {"network": "global/networks/default", "accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}
    ],
    "serviceAccounts": [{"email": "default", "scopes": []}],
}
# Permissions required by such an instance, and the resource that the error names.
NEEDED = {
    "compute.instances.create": "zones/{zone}/instances/vm",
    "compute.instances.setMetadata": "zones/{zone}/instances/vm",
    "compute.instances.setTags": "zones/{zone}/instances/vm",
    "compute.instances.setLabels": "zones/{zone}/instances/vm",
    "compute.instances.setServiceAccount": "zones/{zone}/instances/vm",
    "compute.disks.create": "zones/{zone}/disks/vm",
    "compute.subnetworks.use": "regions/europe-west4/subnetworks/default",
    "compute.subnetworks.useExternalIp": "regions/europe-west4/subnetworks/default",
}


def test_instance_properties_require_permissions(cloud: Any) -> None:
    """cloud.google.com/compute/docs/instances/create-start-instance, "Required permissions"."""
    ann, path = Member(cloud, "ann"), f"{COMPUTE}/zones/{ZONE}/instances"
    make_role(cloud, "maker", NEEDED)
    grant(cloud, PROJECT_NAME, f"{PROJECT_NAME}/roles/maker", ann.name)
    number = Member.owner(cloud).send_ok("GET", "/v1/projects/local-project")["projectNumber"]
    account = f"{number}-compute@developer.gserviceaccount.com"
    assert ann.status_and_message("POST", path, json=INSTANCE) == (
        400,
        f"The user does not have access to service account \"{account}\". User: '{ann.email}'. "
        "Ask a project owner to grant you the iam.serviceAccountUser role on the service account",
    )
    grant(cloud, PROJECT_NAME, "roles/iam.serviceAccountUser", ann.name)
    for permission, resource in NEEDED.items():
        make_role(cloud, "maker", [name for name in NEEDED if name != permission])
        name = f"{PROJECT_NAME}/{resource.format(zone=ZONE)}"
        assert ann.status_and_message("POST", path, json=INSTANCE) == (
            403,
            f"Required '{permission}' permission for '{name}'",
        )
    make_role(cloud, "maker", NEEDED)
    assert ann.status_and_message("POST", path, json=INSTANCE)[0] == 200


def test_tpu_vm_requires_act_as(cloud: Any, as_member: Any) -> None:
    ann, owner = Member(cloud, "ann"), Member.owner(cloud)
    client = as_member(ann, tpu_v2.TpuClient)
    grant(cloud, PROJECT_NAME, "roles/tpu.admin", ann.name)
    body = {"accountId": "worker"}
    email = owner.send_ok("POST", f"/v1/{PROJECT_NAME}/serviceAccounts", json=body)["email"]
    node = {"accelerator_type": "v2-8", "runtime_version": "tpu-ubuntu2204-base"}
    location = f"{PROJECT_NAME}/locations/us-central1-b"
    request = {
        "parent": location,
        "node_id": "n",
        "node": {**node, "service_account": {"email": email}},
    }
    queued = {
        "parent": location,
        "queued_resource_id": "q",
        "queued_resource": {
            "tpu": {"node_spec": [{"parent": location, "node_id": "m", "node": request["node"]}]}
        },
    }
    for call in (
        lambda: client.create_node(request=request),
        lambda: client.create_queued_resource(request=queued),
    ):
        with pytest.raises(exceptions.PermissionDenied) as caught:
            call()
        assert caught.value.message == (
            f"Permission 'iam.serviceAccounts.actAs' denied on service account {email} "
            "(or it may not exist)."
        )
    grant(
        cloud, f"{PROJECT_NAME}/serviceAccounts/{email}", "roles/iam.serviceAccountUser", ann.name
    )
    assert client.create_node(request=request).operation.name
    assert client.create_queued_resource(request=queued).operation.name
    default = {**request, "node_id": "o", "node": node}
    with pytest.raises(exceptions.PermissionDenied) as caught:
        client.create_node(request=default)
    assert "-compute@developer.gserviceaccount.com" in caught.value.message


def test_iam_admin_error_wording(cloud: Any, as_member: Any) -> None:
    ann = Member(cloud, "ann")
    client = as_member(ann, iam_admin_v1.IAMClient)
    with pytest.raises(exceptions.PermissionDenied) as caught:
        client.create_service_account(request={"name": PROJECT_NAME, "account_id": "worker"})
    permission = "iam.serviceAccounts.create"
    text = f"Permission '{permission}' denied on resource (or it may not exist)."
    assert caught.value.message == text
    info = info_of(caught.value)
    assert (info.reason, info.domain) == ("IAM_PERMISSION_DENIED", "iam.googleapis.com")
    assert dict(info.metadata) == {"permission": permission}
    with pytest.raises(exceptions.PermissionDenied) as caught:
        client.create_role(
            request={"parent": PROJECT_NAME, "role_id": "mine", "role": {"title": "m"}}
        )
    message = f"You don't have permission to create a role in {PROJECT_NAME}."
    assert caught.value.message == message  # hashicorp/terraform-provider-google#11680
    assert client.get_role(request={"name": "roles/viewer"}).title == "Viewer"


def test_error_wording_of_services_projects_and_billing(cloud: Any) -> None:
    ann = Member(cloud, "ann")
    number = Member.owner(cloud).send_ok("GET", "/v1/projects/local-project")["projectNumber"]
    enable = f"/v1/{PROJECT_NAME}/services/storage.googleapis.com:enable"
    answer = ann.send("POST", enable, json={}).json()["error"]
    # su-kaka/gcli2api#283
    assert answer["message"] == "Permission denied to enable service [storage.googleapis.com]"
    assert answer["details"][1]["reason"] == "AUTH_PERMISSION_DENIED"
    listed = ann.status_and_message(
        "GET", f"/v1/projects/{number}/services"
    )  # aquasecurity/cloudsploit#1606
    container = f"[projects/{number}]"
    assert listed == (403, f"Permission denied to list services for consumer container {container}")
    for verb, path, permission in (
        ("GET", f"/v3/{PROJECT_NAME}", "projects.get"),
        ("POST", f"/v3/{PROJECT_NAME}:getIamPolicy", "projects.getIamPolicy"),
        ("GET", f"/v3/{FOLDER}", "folders.get"),
        ("POST", f"/v3/{ORGANIZATION}:getIamPolicy", "organizations.getIamPolicy"),
    ):
        name = path.removeprefix("/v3/").partition(":")[0]
        body = {"json": {}} if verb == "POST" else {}
        assert ann.status_and_message(verb, path, **body) == (
            403,
            f"Permission 'resourcemanager.{permission}' denied on resource "
            f"'//cloudresourcemanager.googleapis.com/{name}' (or it may not exist).",
        )
    assert ann.status_and_message("GET", "/v1/projects/local-project") == (403, DENIED)
    policy = {"policy": {"bindings": []}}
    refused = ann.status_and_message("POST", "/v1/projects/local-project:setIamPolicy", json=policy)
    assert refused == (403, "Policy update access denied.")  # GoogleCloudPlatform/avocano#551
    account = "billingAccounts/010CA1-010CA1-010CA1"
    assert ann.status_and_message("GET", f"/v1/{account}") == (403, DENIED)


def test_linking_billing_requires_permissions_on_both(cloud: Any) -> None:
    ann = Member(cloud, "ann")
    account = "billingAccounts/010CA1-010CA1-010CA1"
    path, link = f"/v1/{PROJECT_NAME}/billingInfo", {"billingAccountName": account}
    grant(cloud, PROJECT_NAME, "roles/billing.projectManager", ann.name)
    assert ann.status_and_message("PUT", path, json=link) == (403, DENIED)
    assert ann.status_and_message("PUT", path, json={"billingAccountName": ""})[0] == 200
    grant(cloud, account, "roles/billing.user", ann.name)
    assert ann.status_and_message("PUT", path, json=link)[0] == 200
    revoke(cloud, PROJECT_NAME, "roles/billing.projectManager", ann.name)
    assert ann.status_and_message("PUT", path, json=link) == (403, DENIED)


def test_operation_permission_depends_on_api(cloud: Any) -> None:
    ann, owner = Member(cloud, "ann"), Member.owner(cloud)
    body = {"serviceIds": ["logging.googleapis.com"]}
    path = f"/v1/{PROJECT_NAME}/services:batchEnable"
    operation = owner.send_ok("POST", path, json=body)["name"]
    refused = ann.status_and_message("GET", f"/v1/{operation}")
    assert refused[0] == 403 and "serviceusage.operations.get" in refused[1]
    grant(cloud, PROJECT_NAME, "roles/serviceusage.serviceUsageAdmin", ann.name)
    assert ann.status_and_message("GET", f"/v1/{operation}")[0] == 200
    refused = ann.status_and_message("GET", f"/v2/{PLACE}/operations")
    assert refused[0] == 403 and "tpu.operations.list" in refused[1]
