"""TPU slices of several hosts: groups with a workload policy, all or nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.api_core import exceptions

from tests.support.locations import PROJECT, ZONE

NOTHING = {"default_action_on_failure": "DO_NOTHING"}
BULK = {"mode": "BULK"}


def remove_fault(engine: Any, fault: str) -> None:
    engine.cloud.request("DELETE", f"/_local/faults/{fault}")


def topology_state(group: Any) -> str:
    (applied,) = group.status.applied_accelerator_topologies
    assert applied.accelerator_topology == "4x4"
    return str(applied.state)


def test_slice_has_hosts_of_topology(engine: Any) -> None:
    engine.create_tpu_template()
    engine.wait_ok(engine.insert_slice())
    assert topology_state(engine.wait_stable()) == "ACTIVE"
    assert len(engine.instance_names()) == 4


@pytest.mark.parametrize(
    ("scheduling", "group", "complaint"),
    [
        ({}, {"size": 3}, "4x4 of ct6e-standard-4t requires 4 instances"),
        (
            {"provisioning_model": "FLEX_START", "max_run_duration": {"seconds": 3600}},
            {"instance_lifecycle_policy": NOTHING},
            "MIGs with TPU accelerator topology require BULK mode in target size policy",
        ),
        (
            {"provisioning_model": "FLEX_START", "max_run_duration": {"seconds": 3600}},
            {"target_size_policy": BULK},
            "Must be DO_NOTHING",
        ),
    ],
)
def test_invalid_slices_are_rejected(
    engine: Any, scheduling: Any, group: Any, complaint: str
) -> None:
    engine.create_tpu_template(**scheduling)
    with pytest.raises(exceptions.BadRequest, match=complaint):
        engine.insert_slice(**group)
    assert list(engine.instance_group_managers.list(engine.in_zone)) == []


@pytest.mark.parametrize(
    ("policy", "complaint"),
    [
        ("slice", "The URL is malformed"),
        (f"projects/{PROJECT}/regions/us-east5/resourcePolicies/slice", "region of the group"),
        (f"projects/{PROJECT}/regions/europe-west4/resourcePolicies/none", "cannot be found"),
    ],
)
def test_invalid_policy_references_are_rejected(engine: Any, policy: str, complaint: str) -> None:
    engine.create_tpu_template()
    with pytest.raises(exceptions.BadRequest, match=complaint):
        engine.insert_group(resource_policies={"workload_policy": policy})


@pytest.mark.parametrize("more", [{}, {"target_size_policy": BULK}])
def test_slice_without_capacity_waits_with_errors(engine: Any, more: Any) -> None:
    """Nothing is created; the group retries until there is capacity."""

    fault = engine.cloud.add_fault("stockout", type="ct6e-*", times="unlimited")
    engine.create_tpu_template()
    engine.wait_ok(engine.insert_slice(**more))
    group = engine.wait_group(lambda group: engine.group_errors())
    assert (group.current_actions.creating, group.status.is_stable) == (4, False)
    assert topology_state(group) == "ACTIVATING"
    assert group.status.bulk_instance_operation.in_progress is bool(more)
    assert engine.instance_names() == []
    error = engine.group_errors()[0]
    assert error.error.code == "ZONE_RESOURCE_POOL_EXHAUSTED"
    assert error.instance_action_details.action == "CREATING"
    for member in engine.managed_instances():
        assert member.last_attempt.errors.errors[0].code == "ZONE_RESOURCE_POOL_EXHAUSTED"
        assert (member.current_action, member.instance_status) == ("CREATING", "")
    remove_fault(engine, fault)
    engine.wait_stable()
    assert len(engine.instance_names()) == 4


def test_slice_beyond_quota_creates_nothing(engine: Any) -> None:
    engine.cloud.put_setting("quota", {"INSTANCES": {"europe-west4": 3}})

    engine.create_tpu_template()
    engine.wait_ok(engine.insert_slice())
    engine.wait_group(lambda group: engine.group_errors())
    assert {error.error.code for error in engine.group_errors()} == {"QUOTA_EXCEEDED"}
    assert engine.instance_names() == []


def test_group_without_policy_creates_what_quota_allows(engine: Any) -> None:
    engine.cloud.put_setting("quota", {"INSTANCES": {"europe-west4": 3}})

    engine.create_template()
    engine.wait_ok(engine.insert_group())
    engine.wait_group(lambda group: group.current_actions.none == 3)
    assert engine.group().current_actions.creating == 1
    assert len(engine.instance_names()) == 3


async def test_slice_that_fails_to_boot_is_rolled_back(engine: Any) -> None:
    host = engine.cloud.host
    boot, failed = host.boot, []

    async def fail_once(spec: Any, progress: Any) -> None:
        if not failed:
            failed.append(spec.name)
            host.broken = "no more memory"
        try:
            await boot(spec, progress)
        finally:
            host.broken = ""

    host.boot = fail_once

    def run() -> None:
        engine.create_tpu_template()
        engine.wait_ok(engine.insert_slice())
        engine.wait_stable()
        (error,) = engine.group_errors()
        assert "no more memory" in error.error.message
        assert len(host.discarded) >= 4  # the failed one, and the others with it
        assert len(engine.instance_names()) == 4

    await asyncio.to_thread(run)


def test_partial_group_fault_lets_slice_land_in_part(engine: Any) -> None:
    fault = engine.cloud.add_fault("partial-group", name="bert", number=3, times="unlimited")
    engine.create_tpu_template()
    engine.wait_ok(engine.insert_slice())
    group = engine.wait_group(lambda group: group.current_actions.none == 3)
    assert group.current_actions.creating == 1
    assert len(engine.instance_names()) == 3
    assert {error.error.code for error in engine.group_errors()} == {"ZONE_RESOURCE_POOL_EXHAUSTED"}
    remove_fault(engine, fault)
    engine.wait_stable()
    assert len(engine.instance_names()) == 4


@pytest.mark.parametrize("by_group", [False, True])
@pytest.mark.parametrize("action", ["DELETE", "STOP"])
def test_preempted_slice_is_repaired_as_a_whole(engine: Any, action: str, by_group: bool) -> None:
    spot = {"provisioning_model": "SPOT", "instance_termination_action": action}
    engine.create_tpu_template(**spot)
    engine.wait_ok(engine.insert_slice())
    before = {m.name: m.id for m in engine.managed_instances() if engine.wait_stable()}
    engine.cloud.add_fault("preempt", node="bert" if by_group else min(before))
    engine.wait_group(
        lambda group: (
            group.status.is_stable
            and {m.id for m in engine.managed_instances()}.isdisjoint(before.values())
        )
    )
    assert {m.name for m in engine.managed_instances()} == set(before)
    preempted = [
        name.rpartition("/")[2]
        for name, key, value in engine.cloud.host.events
        if (key, value) == ("preempted", "TRUE")
    ]
    assert sorted(preempted) == sorted(before)


def test_preempted_slice_without_repairs_stays_down(engine: Any) -> None:
    spot = {"provisioning_model": "SPOT", "instance_termination_action": "DELETE"}
    engine.create_tpu_template(**spot)
    engine.wait_ok(engine.insert_slice(instance_lifecycle_policy=NOTHING))
    engine.wait_stable()
    names = engine.instance_names()
    engine.cloud.add_fault("preempt", node=names[0])
    group = engine.wait_group(lambda group: not engine.instance_names())
    assert (group.target_size, group.status.is_stable) == (4, False)
    assert topology_state(group) == "INCOMPLETE"
    # The group can recreate it on request.
    links = [f"zones/{ZONE}/instances/{name}" for name in names]
    request = {
        **engine.in_zone,
        "instance_group_manager": "bert",
        "instance_group_managers_recreate_instances_request_resource": {"instances": links},
    }
    engine.wait_ok(engine.instance_group_managers.recreate_instances_unary(request))
    engine.wait_stable()
    assert engine.instance_names() == names


def test_deleted_instance_is_recreated_with_its_slice(engine: Any) -> None:
    engine.create_tpu_template()
    engine.wait_ok(engine.insert_slice(instance_lifecycle_policy=NOTHING))
    engine.wait_stable()
    before = {m.name: m.id for m in engine.managed_instances()}
    request = {**engine.in_zone, "instance": min(before)}
    engine.wait_ok(engine.instances.delete_unary(request))
    engine.wait_group(
        lambda group: (
            group.status.is_stable
            and {m.id for m in engine.managed_instances()}.isdisjoint(before.values())
        )
    )
    assert engine.instance_names() == sorted(before)


def test_bulk_group_grows_only_from_zero(engine: Any) -> None:
    def resize(engine: Any, size: int) -> None:
        request = {**engine.in_zone, "instance_group_manager": "bert", "size": size}
        engine.wait_ok(engine.instance_group_managers.resize_unary(request))

    flex_start = {
        "provisioning_model": "FLEX_START",
        "max_run_duration": {"seconds": 3600},
        "instance_termination_action": "DELETE",
    }
    engine.create_tpu_template(**flex_start)
    engine.wait_ok(
        engine.insert_slice(size=0, target_size_policy=BULK, instance_lifecycle_policy=NOTHING)
    )
    resize(engine, 4)
    engine.wait_stable()
    with pytest.raises(exceptions.BadRequest, match="requires 4 instances"):
        resize(engine, 8)
    resize(engine, 0)
    engine.wait_stable()
    assert engine.instance_names() == []
    resize(engine, 4)
    engine.wait_stable()


def test_members_are_workers_of_one_slice(engine: Any) -> None:
    """In the order of the group's list, as a public guide to slices of TPU7x numbers them."""

    engine.create_tpu_template()
    engine.wait_ok(engine.insert_slice())
    engine.wait_stable()
    base = f"projects/{PROJECT}/zones/{ZONE}/instances"
    names = [f"{base}/{member.name}" for member in engine.managed_instances()]
    specs = [engine.cloud.host.specs[name] for name in names]
    assert [spec.worker for spec in specs] == [0, 1, 2, 3]
    for spec in specs:
        assert list(spec.members) == names
        assert spec.accelerator_type == "v6e-16"
        assert spec.topology == "4x4"
        assert spec.endpoints == specs[0].endpoints
        assert len({endpoint.address for endpoint in spec.endpoints}) == 4


async def test_instances_leave_group_after_run_duration(engine: Any) -> None:
    def run() -> None:
        limited = {"max_run_duration": {"seconds": 3600}, "instance_termination_action": "DELETE"}
        engine.create_tpu_template(**limited)
        engine.wait_ok(engine.insert_slice(instance_lifecycle_policy=NOTHING))
        engine.wait_stable()

    await asyncio.to_thread(run)
    registry = engine.cloud.server.registry
    finish = registry.service("compute").effects["compute.instances.limit"].finish
    for limit in registry.operations.pending("compute.instances.limit"):
        finish(limit.arguments)
    group = await asyncio.to_thread(engine.wait_group, lambda group: group.target_size == 0)
    assert group.status.is_stable
    assert await asyncio.to_thread(engine.managed_instances) == []


async def test_restart_completes_slice_that_was_being_created(
    make_cloud: Any, make_engine: Any
) -> None:
    cloud = await make_cloud()
    cloud.enable("compute")
    cloud.host.gate.clear()

    def begin() -> list[str]:
        engine = make_engine(cloud)
        engine.create_tpu_template()
        engine.wait_ok(engine.insert_slice())
        engine.wait_group(lambda group: cloud.host.called.count("boot") == 4)
        return [member.name for member in engine.managed_instances()]

    names = await asyncio.to_thread(begin)
    await cloud.server.close()
    again = await make_cloud()
    engine = make_engine(again)
    await asyncio.to_thread(engine.wait_stable)
    assert await asyncio.to_thread(engine.instance_names) == names


async def test_restart_keeps_waiting_for_capacity(make_cloud: Any, make_engine: Any) -> None:
    cloud = await make_cloud()
    cloud.enable("compute")

    def begin() -> str:
        engine = make_engine(cloud)
        fault = engine.cloud.add_fault("stockout", type="ct6e-*", times="unlimited")
        engine.create_tpu_template()
        engine.wait_ok(engine.insert_slice())
        engine.wait_group(lambda group: engine.group_errors())
        return fault

    fault = await asyncio.to_thread(begin)
    await cloud.server.close()
    engine = make_engine(await make_cloud())
    await asyncio.to_thread(remove_fault, engine, fault)
    await asyncio.to_thread(engine.wait_stable)
