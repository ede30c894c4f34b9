"""The weather: zones have room for nodes as a trace says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tpu_v2

from tests.support.locations import PARENT, ZONE
from tests.support.polling import async_until, until
from tpuctl.errors import Usage
from tpuctl.local_cloud import remote_control

OTHER = "projects/local-project/locations/us-central1-a"
HEADER = "hours,zone,type,nodes\n"
HOUR = 3600.0  # at this speed, an hour of the trace takes a second
SPOT = tpu_v2.SchedulingConfig(spot=True)
State = tpu_v2.Node.State
RequestState = tpu_v2.QueuedResourceState.State
AddWeather = Callable[..., dict[str, Any]]


@pytest.fixture
def add_weather(cloud: Any, tmp_path: Path) -> AddWeather:
    def add(text: str, **fields: Any) -> dict[str, Any]:
        path = tmp_path / "trace.csv"
        path.write_text(text, "utf-8")
        return remote_control.add_fault(cloud.local_cloud, "weather", trace=str(path), **fields)

    return add


def node(scheduling: Any = SPOT) -> Any:
    return tpu_v2.Node(
        accelerator_type="v3-8", runtime_version="tpu-ubuntu2204-base", scheduling_config=scheduling
    )


def create(client: Any, name: str, parent: str = PARENT, scheduling: Any = SPOT) -> Any:
    begun = client.create_node(parent=parent, node_id=name, node=node(scheduling), timeout=60)
    return begun.result(timeout=60)


def state(client: Any, name: str) -> Any:
    return client.get_node(name=f"{PARENT}/nodes/{name}", timeout=60).state


def test_zone_is_full_and_others_are_not_affected(cloud: Any, add_weather: AddWeather) -> None:
    fault = add_weather(f"{HEADER}0,{ZONE},v3-8,1\n")
    client = cloud.tpu()
    create(client, "one")
    for scheduling in (SPOT, None):
        with pytest.raises(exceptions.ResourceExhausted, match="no more capacity in the zone"):
            create(client, "two", scheduling=scheduling)
    assert create(client, "two", OTHER).state is State.READY
    assert remote_control.fault(cloud.local_cloud, fault["id"])["applied"] == 2
    client.delete_node(name=f"{PARENT}/nodes/one", timeout=60).result(timeout=60)
    assert create(client, "two").state is State.READY


def test_spot_nodes_are_preempted_when_the_trace_falls(cloud: Any, add_weather: AddWeather) -> None:
    client = cloud.tpu()
    create(client, "demand", scheduling=None)
    create(client, "spot")
    text = f"{HEADER}0,{ZONE},v3-8,2\n0.5,{ZONE},v3-8,1\n"
    fault = add_weather(text, speed=HOUR)
    assert fault["times"] == "unlimited"
    until(lambda: state(client, "spot") is State.PREEMPTED, "the preemption")
    assert state(client, "demand") is State.READY
    fault_state = remote_control.fault(cloud.local_cloud, fault["id"])
    assert fault_state["hours"] >= 0.5
    assert (fault_state["applied"], fault_state["error"]) == (1, "")


def test_queued_resource_waits_for_room(cloud: Any, add_weather: AddWeather) -> None:
    fault = add_weather(f"{HEADER}0,{ZONE},v3-8,0\n")
    client = cloud.tpu()
    spec = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=PARENT, node_id="one", node=node(None))
    request = tpu_v2.QueuedResource(
        tpu=tpu_v2.QueuedResource.Tpu(node_spec=[spec]), spot=tpu_v2.QueuedResource.Spot()
    )
    client.create_queued_resource(
        parent=PARENT, queued_resource_id="q", queued_resource=request, timeout=60
    )

    def request_state() -> Any:
        name = f"{PARENT}/queuedResources/q"
        return client.get_queued_resource(name=name, timeout=60).state.state

    until(lambda: request_state() is RequestState.WAITING_FOR_RESOURCES, "the queue")
    assert remote_control.remove_fault(cloud.local_cloud, fault["id"])["applied"] == 0
    until(lambda: request_state() is RequestState.ACTIVE, "the room")


def test_spot_traces_apply_to_the_zone_of_the_fault(cloud: Any, add_weather: AddWeather) -> None:
    add_weather('{"metadata": {"gap_seconds": 300}, "data": [0]}', zone=ZONE, type="v3-8")
    client = cloud.tpu()
    with pytest.raises(exceptions.ResourceExhausted):
        create(client, "one")
    assert create(client, "one", OTHER).state is State.READY


async def test_weather_continues_after_a_restart(make_cloud: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{HEADER}0,{ZONE},v3-8,1\n1,{ZONE},v3-8,0\n", "utf-8")
    cloud = await make_cloud()
    cloud.enable("tpu", "compute")
    client = cloud.tpu()
    await asyncio.to_thread(create, client, "one")
    fields = {"trace": str(path), "speed": HOUR}
    await asyncio.to_thread(remote_control.add_fault, cloud.local_cloud, "weather", **fields)
    await cloud.server.close()
    client = (await make_cloud()).tpu()
    await async_until(
        lambda: asyncio.to_thread(lambda: state(client, "one") is State.PREEMPTED), "the preemption"
    )


@pytest.mark.parametrize(
    ("text", "fields", "message"),
    [
        ("hours\n", {}, r"trace\.csv:1: Invalid capacity trace: the first line"),
        (f"{HEADER}0,us-centrl1-a,v3-8,1\n", {}, r"csv:2: Unknown zone.*mean us-central1-a"),
        (f"{HEADER}0,{ZONE},v3-9,1\n", {}, r"csv:2: Unknown type.*mean v3-8"),
        (f"{HEADER}0,{ZONE},v3-8,1\n", {"times": 2}, "times and at are not supported"),
        (f"{HEADER}0,{ZONE},v3-8,1\n", {"speed": -1}, "speed must be a number"),
    ],
)
def test_invalid_weather_is_refused(
    cloud: Any, add_weather: AddWeather, text: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(Usage, match=message):
        add_weather(text, **fields)
    assert remote_control.faults(cloud.local_cloud) == []
