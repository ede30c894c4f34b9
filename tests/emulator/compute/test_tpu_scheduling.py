"""How instances with TPU chips are scheduled: models, waiting, quota pools, and interruptions."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core import exceptions

from tests.support.locations import PROJECT, V5P_ZONE
from tests.support.polling import async_until, until
from tests.support.tpu_instances import NAME, V6E, WHICH, tpu_instance
from tpuctl.emulator.compute.instances import capacity
from tpuctl.local_cloud import remote_control

IN_ZONE = {"project": PROJECT, "zone": V5P_ZONE}
FLEX_START = {
    "provisioning_model": "FLEX_START",
    "max_run_duration": {"seconds": 3600},
    "instance_termination_action": "DELETE",
}


def wait_for(seconds: int) -> dict[str, Any]:
    return {"params": {"request_valid_for_duration": {"seconds": seconds}}}


def add_fault(engine: Any, **fields: Any) -> Any:
    return engine.cloud.in_loop(
        engine.cloud.server.registry.faults.add, {"kind": "stockout", **fields}
    )


def set_quota(engine: Any, **limits: int) -> None:
    """Limits in us-east5; underscores stand for hyphens."""
    quota = {
        f"{name.replace('_', '-')}-per-project-region": {"us-east5": limit}
        for name, limit in limits.items()
    }
    engine.cloud.put_setting("quota", quota)


async def until_status(engine: Any, status: str) -> Any:
    async def has_status() -> bool:
        return (
            engine.cloud.server.registry.store.get_json("compute.instances", NAME)["status"]
            == status
        )

    await async_until(has_status, f"the instance to be {status}")
    return await asyncio.to_thread(engine.instances.get, WHICH)


def test_chips_do_not_migrate(engine: Any) -> None:
    request = tpu_instance(scheduling={"on_host_maintenance": "MIGRATE"})
    error = engine.wait_error(engine.instances.insert_unary(request))
    text = "Instances with guest accelerators do not support live migration."
    assert error == ("UNSUPPORTED_OPERATION", text)


@pytest.mark.parametrize(
    ("scheduling", "more", "text"),
    [
        ({"provisioning_model": "FLEX_START"}, {}, "maxRunDuration"),
        ({**FLEX_START, "max_run_duration": {"seconds": 599}}, {}, "between 600 and 604800"),
        ({**FLEX_START, "max_run_duration": {"seconds": 604801}}, {}, "between 600 and 604800"),
        (FLEX_START, wait_for(60), "must be at least 90 and less or equal to 7200 seconds"),
        (FLEX_START, wait_for(7201), "must be at least 90 and less or equal to 7200 seconds"),
        ({"provisioning_model": "SPOT"}, wait_for(3600), "requestValidForDuration"),
        ({"provisioning_model": "CHEAP"}, {}, "provisioningModel"),
        ({"provisioning_model": "RESERVATION_BOUND"}, {}, "requires a specific reservation"),
    ],
)
def test_invalid_scheduling_is_refused(
    engine: Any, scheduling: dict[str, Any], more: dict[str, Any], text: str
) -> None:
    request = tpu_instance(scheduling=scheduling, **more)
    with pytest.raises(exceptions.BadRequest) as caught:
        engine.instances.insert_unary(request)
    assert text in caught.value.message
    assert not engine.cloud.host.called


async def test_flex_start_waits_for_capacity(engine: Any) -> None:
    fault = add_fault(engine, zone=V5P_ZONE, type=V6E, times="unlimited")
    request = tpu_instance(scheduling=FLEX_START, **wait_for(7200))
    operation = await asyncio.to_thread(engine.instances.insert_unary, request)
    instance = await until_status(engine, "PENDING")
    assert instance.scheduling.provisioning_model == "FLEX_START"
    assert not engine.cloud.host.called
    engine.cloud.server.registry.faults.remove(fault.id)
    await asyncio.to_thread(engine.wait_ok, operation)
    assert (await until_status(engine, "RUNNING")).name == "bert-tpu"


async def test_flex_start_request_expires(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    add_fault(engine, zone=V5P_ZONE, type=V6E, times="unlimited")
    request = tpu_instance(scheduling=FLEX_START, **wait_for(90))
    operation = await asyncio.to_thread(engine.instances.insert_unary, request)
    await until_status(engine, "PENDING")
    late = SimpleNamespace(time=lambda: time.time() + 90)
    monkeypatch.setattr(capacity, "time", late)
    code, _ = await asyncio.to_thread(engine.wait_error, operation)
    assert code == "ZONE_RESOURCE_POOL_EXHAUSTED"
    with pytest.raises(exceptions.NotFound):
        await asyncio.to_thread(engine.instances.get, WHICH)


def test_flex_start_that_may_not_wait_fails_at_once(engine: Any) -> None:
    add_fault(engine, zone=V5P_ZONE, type=V6E)
    for more in (wait_for(0), {}):
        request = tpu_instance(scheduling=FLEX_START, **more)
        operation = engine.instances.insert_unary(request)
        done = engine.wait(operation)
        if more:
            assert done.error.errors[0].code == "ZONE_RESOURCE_POOL_EXHAUSTED"
    assert not done.error.errors  # the fault fires once


async def test_pending_instance_can_be_deleted(engine: Any) -> None:
    add_fault(engine, zone=V5P_ZONE, type=V6E, times="unlimited")
    request = tpu_instance(scheduling=FLEX_START, **wait_for(7200))
    insertion = await asyncio.to_thread(engine.instances.insert_unary, request)
    await until_status(engine, "PENDING")

    def run() -> None:
        engine.wait_ok(engine.instances.delete_unary(WHICH, timeout=60))
        assert engine.wait(insertion).error.errors
        assert not list(engine.instances.list(IN_ZONE))
        assert not list(engine.disks.list(IN_ZONE))

    await asyncio.to_thread(run)


@pytest.mark.parametrize(
    ("machine_type", "scheduling", "limits", "metric", "dimensions"),
    [
        (
            *(V6E, {}, {"TPUS_PER_TPU_FAMILY": 3}),
            *("TPUS_PER_TPU_FAMILY", {"region": "us-east5", "tpu_family": "CT6E"}),
        ),
        (
            *(V6E, {"provisioning_model": "SPOT"}, {"PREEMPTIBLE_TPU_V6E": 3}),
            *("PREEMPTIBLE_TPU_V6E", {"region": "us-east5"}),
        ),
        (
            *("ct5p-hightpu-4t", {}, {"TPU_V5P": 3}),
            *("TPU_V5P", {"region": "us-east5"}),
        ),
        (
            *(V6E, FLEX_START, {"PREEMPTIBLE_TPU_V6E": 3, "TPUS_PER_TPU_FAMILY": 3}),
            *("TPUS_PER_TPU_FAMILY", {"region": "us-east5", "tpu_family": "CT6E"}),
        ),
    ],
)
def test_quota_pools_of_chips(
    engine: Any,
    machine_type: str,
    scheduling: dict[str, Any],
    limits: dict[str, int],
    metric: str,
    dimensions: dict[str, str],
) -> None:
    set_quota(engine, **limits)

    done = engine.wait(
        engine.instances.insert_unary(tpu_instance(machine_type, scheduling=scheduling))
    )
    (error,) = done.error.errors
    text = f"Quota '{metric}' exceeded.  Limit: 3.0 in region us-east5."
    assert (error.code, error.message) == ("QUOTA_EXCEEDED", text)
    (info,) = [each.quota_info for each in error.error_details]
    assert info.metric_name == f"compute.googleapis.com/{metric.lower()}"
    assert info.limit_name == f"{metric.replace('_', '-')}-per-project-region"
    assert dict(info.dimensions) == dimensions


def test_pools_are_separate(engine: Any) -> None:
    """Flex-start takes preemptible quota first, then standard quota; spot only preemptible."""
    set_quota(engine, PREEMPTIBLE_TPU_V6E=4, TPUS_PER_TPU_FAMILY=4)

    def insert(name: str, scheduling: dict[str, Any]) -> str:
        request = tpu_instance(V6E, name, scheduling=scheduling)
        done = engine.wait(engine.instances.insert_unary(request, timeout=60))
        return done.error.errors[0].code if done.error.errors else ""

    assert not insert("flex", FLEX_START)
    assert insert("spot", {"provisioning_model": "SPOT"}) == "QUOTA_EXCEEDED"
    assert not insert("other-flex", FLEX_START)
    assert insert("standard", {}) == "QUOTA_EXCEEDED"
    engine.wait_ok(engine.instances.delete_unary({**WHICH, "instance": "flex"}, timeout=60))
    assert not insert("spot", {"provisioning_model": "SPOT"})


async def test_flex_start_waits_for_quota(engine: Any) -> None:
    set_quota(engine, PREEMPTIBLE_TPU_V6E=0, TPUS_PER_TPU_FAMILY=0)
    request = tpu_instance(scheduling=FLEX_START, **wait_for(7200))
    operation = await asyncio.to_thread(engine.instances.insert_unary, request)
    await until_status(engine, "PENDING")
    set_quota(engine, PREEMPTIBLE_TPU_V6E=0, TPUS_PER_TPU_FAMILY=4)
    await asyncio.to_thread(engine.wait_ok, operation)


@pytest.mark.parametrize("action", ["DELETE", "STOP"])
async def test_instance_runs_no_longer_than_it_may(engine: Any, action: str) -> None:
    scheduling = {**FLEX_START, "instance_termination_action": action}
    request = tpu_instance(scheduling=scheduling)
    await asyncio.to_thread(lambda: engine.wait_ok(engine.instances.insert_unary(request)))
    instance = await asyncio.to_thread(engine.instances.get, WHICH)
    started = datetime.fromisoformat(instance.last_start_timestamp)
    ends = datetime.fromisoformat(instance.resource_status.scheduling.termination_timestamp)
    assert ends - started == timedelta(hours=1)
    operations = engine.cloud.server.registry.operations
    (limit,) = operations.pending("compute.instances.limit")
    assert limit.due - limit.started == 3600
    service = engine.cloud.server.registry.service("compute")
    service.effects["compute.instances.limit"].finish(limit.arguments)
    (end,) = operations.pending("compute.instances.timeUp")
    await operations.wait(end.name, 60)
    rows = await asyncio.to_thread(lambda: list(engine.instances.list(IN_ZONE)))
    assert [row.status for row in rows] == ([] if action == "DELETE" else ["TERMINATED"])
    assert engine.cloud.host.running == set()


async def test_limit_of_an_earlier_run_stops_nothing(engine: Any) -> None:
    scheduling = {**FLEX_START, "instance_termination_action": "STOP"}
    request = tpu_instance(scheduling=scheduling)

    def run() -> None:
        engine.wait_ok(engine.instances.insert_unary(request, timeout=60))
        engine.wait_ok(engine.instances.stop_unary(WHICH, timeout=60))
        engine.wait_ok(engine.instances.start_unary(WHICH, timeout=60))

    await asyncio.to_thread(run)
    registry = engine.cloud.server.registry
    first, second = sorted(
        registry.operations.pending("compute.instances.limit"), key=lambda record: record.due
    )
    finish = registry.service("compute").effects["compute.instances.limit"].finish
    finish(first.arguments)
    assert (await asyncio.to_thread(engine.instances.get, WHICH)).status == "RUNNING"
    finish(second.arguments)
    await until_status(engine, "TERMINATED")


async def test_spot_tpu_is_preempted(engine: Any) -> None:
    scheduling = {"provisioning_model": "SPOT", "instance_termination_action": "STOP"}
    request = tpu_instance(scheduling=scheduling)
    await asyncio.to_thread(lambda: engine.wait_ok(engine.instances.insert_unary(request)))
    handle = engine.cloud.local_cloud
    await asyncio.to_thread(remote_control.add_fault, handle, "preempt", node="bert-tpu")
    await until_status(engine, "TERMINATED")
    assert engine.cloud.host.events == [(NAME, "preempted", "TRUE")]


async def test_states_of_a_new_instance(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    instances = engine.cloud.server.registry.service("compute").instances
    statuses, save = [], instances.save

    def record(name: str, row: dict[str, Any]) -> None:
        statuses.append(row["status"])
        save(name, row)

    monkeypatch.setattr(instances, "save", record)
    request = tpu_instance(scheduling=FLEX_START, **wait_for(90))
    await asyncio.to_thread(lambda: engine.wait_ok(engine.instances.insert_unary(request)))
    assert list(dict.fromkeys(statuses)) == ["PENDING", "PROVISIONING", "STAGING", "RUNNING"]


def test_maintenance_is_announced(engine: Any) -> None:
    engine.wait_ok(engine.instances.insert_unary(tpu_instance()))
    add = remote_control.add_fault
    add(engine.cloud.local_cloud, "maintenance", node="bert-tpu")
    events = [
        (NAME, "maintenance-event", value) for value in ("TERMINATE_ON_HOST_MAINTENANCE", "NONE")
    ]
    until(lambda: engine.cloud.host.events == events, "the end of the maintenance")


async def test_waiting_and_limits_survive_a_restart(make_cloud: Any, make_engine: Any) -> None:
    cloud = await make_cloud()
    cloud.enable("compute")
    engine = make_engine(cloud)
    running = tpu_instance(scheduling=FLEX_START)
    await asyncio.to_thread(lambda: engine.wait_ok(engine.instances.insert_unary(running)))
    fault = add_fault(engine, zone=V5P_ZONE, times="unlimited")
    pending = tpu_instance(name="later", scheduling=FLEX_START, **wait_for(7200))
    operation = await asyncio.to_thread(engine.instances.insert_unary, pending)
    which = {**WHICH, "instance": "later"}
    assert (await asyncio.to_thread(engine.instances.get, which)).status == "PENDING"
    await cloud.server.close()
    engine = make_engine(await make_cloud())
    assert (await asyncio.to_thread(engine.instances.get, which)).status == "PENDING"
    registry = engine.cloud.server.registry
    (limit,) = registry.operations.pending("compute.instances.limit")
    assert limit.arguments["target"] == NAME
    registry.faults.remove(fault.id)
    await asyncio.to_thread(engine.wait_ok, operation)
