"""Shared VPC: networks of a host project, used by a service project.

Expected behavior: docs.cloud.google.com/vpc/docs/provisioning-shared-vpc (attachment, the role
`compute.networkUser` in the project or on a subnetwork, the Google APIs service agent for groups),
docs.cloud.google.com/tpu/docs/shared-vpc-networks (`roles/tpu.xpnAgent`). Refusals: public issues.
"""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tpu_v1, tpu_v2

from tests.support.callers import Member, grant
from tests.support.locations import PROJECT, REGION, ZONE
from tests.support.shared_vpc import GROUP_AGENT, TPU_AGENT, HostProject, agent

ANN = "user:ann@example.com"
NOT_ALLOWED = "Cross-project references for this resource are not allowed."
NODE = {"accelerator_type": "v2-8", "runtime_version": "tpu-vm-tf-2.18.0"}


@pytest.fixture
def make_host(cloud: Any) -> Any:
    return lambda: HostProject(cloud, REGION)


def machine_in(engine: Any, host: HostProject, name: str = "box") -> dict[str, Any]:
    body: dict[str, Any] = engine.controller(name)
    del body["network_interfaces"][0]["network"]
    body["network_interfaces"][0]["subnetwork"] = host.subnetwork
    return body


def test_attachment_comes_first(engine: Any, make_host: Any) -> None:
    host = make_host()
    machine = machine_in(engine, host)
    with pytest.raises(exceptions.BadRequest, match=NOT_ALLOWED):
        engine.insert(machine)
    projects = engine.projects
    attach = {
        "project": host.id,
        "projects_enable_xpn_resource_request_resource": {
            "xpn_resource": {"id": PROJECT, "type_": "PROJECT"}
        },
    }
    refusal = f"'projects/{host.id}' is not a shared VPC host project."
    with pytest.raises(exceptions.BadRequest, match=refusal):
        projects.enable_xpn_resource_unary(attach)
    assert projects.get_xpn_host(project=PROJECT).name == ""
    host.share_with(PROJECT)
    answer = projects.get_xpn_host(project=PROJECT)
    assert (answer.name, answer.xpn_project_status) == (host.id, "HOST")
    assert [resource.id for resource in projects.get_xpn_resources(project=host.id)] == [PROJECT]
    request = {"project": host.id, "projects_list_xpn_hosts_request_resource": {}}
    assert host.id in [entry.name for entry in projects.list_xpn_hosts(request)]
    engine.wait_ok(engine.insert(machine))
    interface = engine.get("box").network_interfaces[0]
    assert interface.network == engine.link + host.network
    host.do("disableXpnResource", {"xpnResource": {"id": PROJECT, "type": "PROJECT"}})
    with pytest.raises(exceptions.BadRequest, match=NOT_ALLOWED):
        engine.insert(machine_in(engine, host, "second"))


def test_use_is_granted_in_the_project_or_on_the_subnetwork(engine: Any, make_host: Any) -> None:
    host = make_host()
    host.share_with(PROJECT)
    cloud, ann = engine.cloud, Member(engine.cloud, ANN)
    for role in ("compute.instanceAdmin.v1", "iam.serviceAccountUser"):
        grant(cloud, f"projects/{PROJECT}", f"roles/{role}", ANN)
    path = f"/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances"
    image = "projects/debian-cloud/global/images/family/debian-12"
    body = {
        "name": "box",
        "machineType": f"zones/{ZONE}/machineTypes/n1-standard-1",
        "disks": [{"boot": True, "initializeParams": {"sourceImage": image}}],
        "networkInterfaces": [{"subnetwork": host.subnetwork, "accessConfigs": [{}]}],
    }
    needed = f"Required 'compute.subnetworks.use' permission for '{host.subnetwork}'"
    assert ann.status_and_message("POST", path, json=body) == (403, needed)
    tested = {"permissions": ["compute.subnetworks.use", "compute.subnetworks.update"]}
    test_path = f"/compute/v1/{host.subnetwork}/testIamPermissions"
    assert ann.send_ok("POST", test_path, json=tested).get("permissions", []) == []
    usable = f"/compute/v1/projects/{host.id}/aggregated/subnetworks/listUsable"
    assert ann.send_ok("GET", usable).get("items", []) == []
    host.allow_on_subnetwork(ANN)
    assert ann.send_ok("POST", test_path, json=tested)["permissions"] == ["compute.subnetworks.use"]
    (item,) = ann.send_ok("GET", usable)["items"]
    assert item["subnetwork"] == engine.link + host.subnetwork
    assert ann.send("GET", f"/compute/v1/{host.network}").status_code == 403, "not of the network"
    ann.send_ok("POST", path, json=body)


def test_groups_use_it_as_google_apis_agent(engine: Any, make_host: Any) -> None:
    host = make_host()
    host.share_with(PROJECT)
    interface = {"subnetwork": host.subnetwork}
    template = engine.create_template("bert", network_interfaces=[interface])
    group = {"name": "bert", "instance_template": template, "target_size": 1}
    request = {**engine.in_zone, "instance_group_manager_resource": group}
    managers = engine.instance_group_managers
    engine.wait_ok(managers.insert_unary(request, timeout=60))
    of_group = {**engine.in_zone, "instance_group_manager": "bert"}
    errors = list(managers.list_errors(of_group))
    assert "Required 'compute.subnetworks.use' permission" in errors[0].error.message
    host.allow(agent(engine.cloud, PROJECT, GROUP_AGENT))
    engine.wait_ok(managers.delete_unary(of_group, timeout=60))
    group["name"] = "second"
    engine.wait_ok(managers.insert_unary(request, timeout=60))
    of_second = {**engine.in_zone, "instance_group_manager": "second"}
    assert not list(managers.list_errors(of_second))


def test_tpu_vms_need_the_role_of_the_agent(engine: Any, make_host: Any) -> None:
    host, cloud = make_host(), engine.cloud
    parent = f"projects/{PROJECT}/locations/{ZONE}"
    client = cloud.client(tpu_v2.TpuClient, "grpc")
    network = {"network": host.network, "subnetwork": host.subnetwork}
    request = {"parent": parent, "node_id": "a", "node": {**NODE, "network_config": network}}
    with pytest.raises(exceptions.BadRequest, match=NOT_ALLOWED):
        client.create_node(request)
    host.share_with(PROJECT)
    with pytest.raises(exceptions.PermissionDenied, match=r"compute\.subnetworks\.use"):
        client.create_node(request)
    host.allow(agent(cloud, PROJECT, TPU_AGENT), "roles/tpu.xpnAgent")
    client.create_node(request)


def test_tpu_nodes_need_service_networking(engine: Any, make_host: Any) -> None:
    host = make_host()
    host.share_with(PROJECT)
    client = engine.cloud.client(tpu_v1.TpuClient, "grpc")
    node = {"accelerator_type": "v2-8", "tensorflow_version": "2.12.0", "network": host.network}
    request = {"parent": f"projects/{PROJECT}/locations/{ZONE}", "node_id": "a", "node": node}
    with pytest.raises(exceptions.BadRequest, match="use_service_networking"):
        client.create_node(request)
    node["use_service_networking"] = True
    client.create_node(request)
