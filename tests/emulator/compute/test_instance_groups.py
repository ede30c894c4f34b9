"""Managed instance groups: instances from a template, alone or as a slice."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from google.api_core import exceptions

BASE = "projects/local-project/zones/europe-west4-a"


async def test_group_creates_instances_of_template(engine: Any) -> None:
    def run() -> None:
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

    await asyncio.to_thread(run)


async def test_deleting_group_deletes_instances(engine: Any) -> None:
    def run() -> None:
        engine.create_template()
        engine.wait_ok(engine.insert_group(size=2))
        engine.wait_stable()
        request = {**engine.in_zone, "instance_group_manager": "bert"}
        engine.wait_ok(engine.instance_group_managers.delete_unary(request))
        assert engine.instance_names() == []
        assert list(engine.disks.list(engine.in_zone)) == []
        with pytest.raises(exceptions.NotFound):
            engine.group()

    await asyncio.to_thread(run)


async def test_group_operation_ends_before_instances_run(engine: Any) -> None:
    """`insert` is done when the group exists (the method's description)."""
    engine.cloud.host.gate.clear()

    def run() -> None:
        engine.create_template()
        engine.wait_ok(engine.insert_group(size=2))
        assert not engine.group().status.is_stable
        assert {m.current_action for m in engine.managed_instances()} == {"CREATING"}

    await asyncio.to_thread(run)
    engine.cloud.host.gate.set()
    await asyncio.to_thread(engine.wait_stable)


async def test_template_and_policy_in_use_cannot_be_deleted(engine: Any) -> None:
    def run() -> None:
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

    await asyncio.to_thread(run)
