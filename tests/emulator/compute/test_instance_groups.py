"""Managed instance groups: instances from a template, alone or as a slice."""

from __future__ import annotations

import re
from typing import Any

import pytest
from google.api_core import exceptions

BASE = "projects/local-project/zones/europe-west4-a"


def test_group_creates_instances_of_template(engine: Any) -> None:
    template = engine.create_template(metadata={"items": [{"key": "a", "value": "b"}]})
    engine.wait_ok(engine.insert_group(size=3))
    group = engine.wait_stable()
    assert (group.target_size, group.current_actions.none) == (3, 3)
    assert group.instance_template == template
    names = engine.instance_names()
    assert len(names) == 3
    assert all(re.fullmatch(r"bert-[a-z0-9]{4}", name) for name in names)
    assert engine.cloud.host.running == {f"{BASE}/instances/{name}" for name in names}
    instance = engine.get(names[0])
    assert instance.machine_type.endswith("/zones/europe-west4-a/machineTypes/n1-standard-1")
    metadata = {item.key: item.value for item in instance.metadata.items}
    number = metadata["created-by"].split("/")[1]
    assert number.isdigit()
    assert metadata == {
        "a": "b",
        "created-by": f"projects/{number}/zones/europe-west4-a/instanceGroupManagers/bert",
        "instance-template": f"projects/{number}/global/instanceTemplates/bert",
    }
    managed = engine.managed_instances()
    assert [member.name for member in managed] == [
        member.instance.rpartition("/")[2] for member in managed
    ]
    assert {(m.current_action, m.instance_status) for m in managed} == {("NONE", "RUNNING")}


def test_deleting_group_deletes_instances(engine: Any) -> None:
    engine.create_template()
    engine.wait_ok(engine.insert_group(size=2))
    engine.wait_stable()
    request = {**engine.in_zone, "instance_group_manager": "bert"}
    engine.wait_ok(engine.instance_group_managers.delete_unary(request))
    assert engine.instance_names() == []
    assert list(engine.disks.list(engine.in_zone)) == []
    with pytest.raises(exceptions.NotFound):
        engine.group()


def test_group_operation_ends_before_instances_run(engine: Any) -> None:
    """`insert` is done when the group exists (the method's description)."""
    engine.cloud.host.gate.clear()

    engine.create_template()
    engine.wait_ok(engine.insert_group(size=2))
    assert not engine.group().status.is_stable
    assert {m.current_action for m in engine.managed_instances()} == {"CREATING"}
    engine.cloud.in_loop(engine.cloud.host.gate.set)
    engine.wait_stable()


def test_template_and_policy_in_use_cannot_be_deleted(engine: Any) -> None:
    engine.create_template()
    policy = engine.create_policy()
    engine.wait_ok(engine.insert_group(size=0, resource_policies={"workload_policy": policy}))
    assert engine.group().resource_policies.workload_policy == policy
    template = {"project": "local-project", "instance_template": "bert"}
    workload_policy = {**engine.in_region, "resource_policy": "bert"}
    in_use = "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"
    for delete, request in (
        (engine.instance_templates.delete_unary, template),
        (engine.resource_policies.delete_unary, workload_policy),
    ):
        code, text = engine.wait_error(delete(request))
        assert (code, "instanceGroupManagers/bert" in text) == (in_use, True)
    request = {**engine.in_zone, "instance_group_manager": "bert"}
    engine.wait_ok(engine.instance_group_managers.delete_unary(request))
    engine.wait_ok(engine.instance_templates.delete_unary(template))
    engine.wait_ok(engine.resource_policies.delete_unary(workload_policy))


def test_resize_adds_and_deletes_instances(engine: Any) -> None:
    def resize(size: int) -> set[str]:
        request = {**engine.in_zone, "instance_group_manager": "bert", "size": size}
        engine.wait_ok(engine.instance_group_managers.resize_unary(request))
        group = engine.wait_stable()
        assert group.target_size == size
        return set(engine.instance_names())

    engine.create_template()
    engine.wait_ok(engine.insert_group(size=1))
    (first,) = {member.name for member in engine.managed_instances()}
    enlarged = resize(3)
    assert first in enlarged
    assert len(enlarged) == 3
    remaining = resize(1)
    assert remaining < enlarged
    name = remaining.pop()
    request = {
        **engine.in_zone,
        "instance_group_manager": "bert",
        "instance_group_managers_delete_instances_request_resource": {
            "instances": [f"zones/europe-west4-a/instances/{name}"]
        },
    }
    engine.wait_ok(engine.instance_group_managers.delete_instances_unary(request))
    assert engine.wait_stable().target_size == 0
    assert engine.instance_names() == []


def test_patch_changes_policies_and_size(engine: Any) -> None:
    engine.create_template()
    engine.wait_ok(engine.insert_group(size=1))
    before = engine.wait_stable()
    resource = {
        "instance_lifecycle_policy": {"default_action_on_failure": "DO_NOTHING"},
        "target_size": 2,
    }
    request = {
        **engine.in_zone,
        "instance_group_manager": "bert",
        "instance_group_manager_resource": resource,
    }
    engine.wait_ok(engine.instance_group_managers.patch_unary(request))
    after = engine.wait_stable()
    assert after.instance_lifecycle_policy.default_action_on_failure == "DO_NOTHING"
    assert after.instance_lifecycle_policy.force_update_on_repair == "NO"
    assert (after.target_size, len(engine.instance_names())) == (2, 2)
    assert after.instance_template == before.instance_template


def test_instance_group_is_view_of_manager(engine: Any) -> None:
    engine.create_template()
    engine.wait_ok(engine.insert_group(size=2))
    engine.wait_stable()
    request = {**engine.in_zone, "instance_group": "bert"}
    group = engine.instance_groups.get(request)
    assert (group.name, group.size) == ("bert", 2)
    assert group.network.endswith("/global/networks/default")
    assert [each.name for each in engine.instance_groups.list(engine.in_zone)] == ["bert"]
    members = list(engine.instance_groups.list_instances(request))
    assert sorted(member.instance.rpartition("/")[2] for member in members) == sorted(
        engine.instance_names()
    )


def test_interfaces_of_a_template_are_numbered(engine: Any) -> None:
    interface = {"name": "global/networks/default", "network": "global/networks/default"}
    engine.create_template(network_interfaces=[interface])
    which = {"project": "local-project", "instance_template": "bert"}
    (interface,) = engine.instance_templates.get(which, timeout=60).properties.network_interfaces
    assert interface.name == "nic0"


def test_instance_is_created_from_template(engine: Any) -> None:
    template = engine.create_template(labels={"team": "nlp"})
    engine.wait_ok(engine.insert({"name": "box"}, source_instance_template=template))
    instance = engine.get("box")
    assert instance.machine_type.endswith("/machineTypes/n1-standard-1")
    assert dict(instance.labels) == {"team": "nlp"}
    with pytest.raises(exceptions.BadRequest, match="cannot be found"):
        none = "global/instanceTemplates/none"
        engine.insert({"name": "other"}, source_instance_template=none)


def test_workload_policy_is_for_groups_only(engine: Any) -> None:
    policy = engine.create_policy()
    with pytest.raises(exceptions.BadRequest, match="must have one of"):
        engine.insert(engine.controller(resource_policies=[policy]))


@pytest.mark.parametrize(
    ("policy", "complaint"),
    [
        ({"type_": "HIGH_THROUGHPUT", "accelerator_topology": "4"}, "AxB or AxBxC"),
        ({"accelerator_topology": "4x4"}, "HIGH_AVAILABILITY, HIGH_THROUGHPUT"),
    ],
)
def test_invalid_policies_are_rejected(engine: Any, policy: Any, complaint: str) -> None:
    resource = {"name": "bert", "workload_policy": policy}
    request = {**engine.in_region, "resource_policy_resource": resource}
    with pytest.raises(exceptions.BadRequest, match=complaint):
        engine.resource_policies.insert_unary(request)


@pytest.mark.parametrize(
    ("group", "complaint"),
    [
        ({"instance_template": "bert"}, "The URL is malformed"),
        ({"instance_template": "global/instanceTemplates/none"}, "cannot be found"),
        (
            {"instance_template": "regions/us-east5/instanceTemplates/bert"},
            "region of the zone",
        ),
        ({"size": 1001}, "from 0 to 1000"),
        ({"name": "Bert"}, "Must be a match of regex"),
        ({"target_size_policy": {"mode": "BULK"}}, "requires a machine type with TPUs"),
    ],
)
def test_invalid_groups_are_rejected(engine: Any, group: Any, complaint: str) -> None:
    engine.create_template()
    with pytest.raises(exceptions.BadRequest, match=complaint):
        engine.insert_group(**group)


@pytest.mark.parametrize(
    "permission",
    [
        "compute.instanceGroupManagers.create",
        "compute.instanceTemplates.useReadOnly",
        "compute.resourcePolicies.use",
        "compute.instances.create",
        "compute.instances.setMetadata",
        "compute.disks.create",
        "compute.subnetworks.use",
    ],
)
def test_group_requires_permissions_for_its_instances(engine: Any, permission: str) -> None:
    engine.cloud.put_setting("denied_permissions", [permission])

    engine.create_template()
    policy = {"workload_policy": engine.create_policy()}
    with pytest.raises(exceptions.Forbidden, match=f"Required '{permission}' permission"):
        engine.insert_group(resource_policies=policy)


def test_template_requires_acting_as_its_account(engine: Any) -> None:
    denied = ["iam.serviceAccounts.actAs"]
    engine.cloud.put_setting("denied_permissions", denied)
    with pytest.raises(exceptions.BadRequest, match="does not have access to service account"):
        engine.create_template()
