"""Faults of single machines: which machines they apply to, their state, and how they are undone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.cloud import compute_v1, tpu_v2

from tests.support.locations import PARENT, PROJECT, ZONE
from tests.support.polling import until
from tpuctl.errors import NotFound
from tpuctl.local_cloud import remote_control

SLICE = [f"{PARENT}/nodes/slice/workers/{index}" for index in range(4)]
INSTANCE = f"projects/{PROJECT}/zones/{ZONE}/instances/controller"


def make_slice(cloud: Any) -> None:
    node = tpu_v2.Node(accelerator_type="v3-32", runtime_version="tpu-ubuntu2204-base")
    begun = cloud.tpu().create_node(parent=PARENT, node_id="slice", node=node, timeout=60)
    begun.result(timeout=60)


def make_instance(cloud: Any, **scheduling: Any) -> None:
    client = cloud.client(compute_v1.InstancesClient)
    operations = cloud.client(compute_v1.ZoneOperationsClient)
    expected = {
        "name": "controller",
        "machine_type": f"zones/{ZONE}/machineTypes/n1-standard-1",
        "disks": [
            {
                "boot": True,
                "auto_delete": True,
                "initialize_params": {
                    "source_image": "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"
                },
            }
        ],
        "network_interfaces": [{"network": "global/networks/default"}],
        "scheduling": scheduling,
    }
    begun = client.insert_unary(
        project=PROJECT, zone=ZONE, instance_resource=compute_v1.Instance(expected), timeout=60
    )
    ended = operations.wait(project=PROJECT, zone=ZONE, operation=begun.name, timeout=60)
    assert not ended.error.errors, ended.error


def add(cloud: Any, kind: str, **fields: Any) -> dict[str, Any]:
    return remote_control.add_fault(cloud.local_cloud, kind, **fields)


def happened(cloud: Any, fault: dict[str, Any]) -> dict[str, Any]:
    def used() -> dict[str, Any] | None:
        state = remote_control.fault(cloud.local_cloud, fault["id"])
        return state if state["applied"] else None

    met: dict[str, Any] = until(used, f"the fault {fault['kind']!r}")
    return met


def test_host_gone_applies_to_all_workers_or_one(cloud: Any) -> None:
    make_slice(cloud)
    fault = happened(cloud, add(cloud, "host-unreachable", node="slice", worker=2))
    assert (fault["applied"], fault["error"]) == (1, "")
    assert cloud.host.lost == {SLICE[2]: True}
    full_name = f"{PARENT}/nodes/slice"
    happened(cloud, add(cloud, "host-unreachable", node=full_name, mode="refused"))
    assert cloud.host.lost == dict.fromkeys(SLICE, False)
    node = cloud.tpu().get_node(name=full_name, timeout=60)
    assert node.state is tpu_v2.Node.State.READY


def test_disk_is_full_until_fault_is_removed(cloud: Any) -> None:
    make_slice(cloud)
    fault = happened(cloud, add(cloud, "disk-full", node="slice", worker=1))
    assert (fault["applied"], fault["error"], fault["free_bytes"]) == (1, "", 0)
    assert cloud.host.limits == {SLICE[1]: 0}
    assert cloud.host.disk_limit(SLICE[1]) == 0, "queried when its programs start"
    assert cloud.host.disk_limit(SLICE[0]) is None
    every = happened(cloud, add(cloud, "disk-full", node="slice", after_bytes=5000))
    assert cloud.host.limits == dict.fromkeys(SLICE, 5000)
    remote_control.remove_fault(cloud.local_cloud, every["id"])
    assert cloud.host.limits == {**dict.fromkeys(SLICE), SLICE[1]: 0}, "the other one stays"
    remote_control.remove_all_faults(cloud.local_cloud)
    assert cloud.host.limits == dict.fromkeys(SLICE)
    assert cloud.host.disk_limit(SLICE[1]) is None


async def test_disk_full_survives_restart(make_cloud: Any) -> None:
    cloud = await make_cloud()
    cloud.enable("tpu", "compute")
    await asyncio.to_thread(make_slice, cloud)
    await asyncio.to_thread(
        happened,
        cloud,
        await asyncio.to_thread(add, cloud, "disk-full", node="slice", after_bytes=7),
    )
    await cloud.server.close()
    again = await make_cloud()
    assert again.host.disk_limit(SLICE[3]) == 7


@pytest.mark.parametrize("kind", ["host-unreachable", "disk-full"])
def test_faults_apply_to_instances(cloud: Any, kind: str) -> None:
    make_instance(cloud)
    happened(cloud, add(cloud, kind, node="controller"))
    events = cloud.host.lost if kind == "host-unreachable" else cloud.host.limits
    assert list(events) == [INSTANCE]


def test_instance_is_preempted(cloud: Any) -> None:
    make_instance(cloud)
    fault = happened(cloud, add(cloud, "preempt", node="controller"))
    assert fault["error"] == ""
    until(lambda: INSTANCE not in cloud.host.running, "the end of the instance")
    assert cloud.host.events == [(INSTANCE, "preempted", "TRUE")]


@pytest.mark.parametrize("policy", ["MIGRATE", "TERMINATE"])
def test_instance_is_maintained(cloud: Any, policy: str) -> None:
    make_instance(cloud, on_host_maintenance=policy)
    fault = happened(cloud, add(cloud, "maintenance", node="controller"))
    assert fault["error"] == ""
    assert cloud.host.events == [
        (INSTANCE, "maintenance-event", f"{policy}_ON_HOST_MAINTENANCE"),
        (INSTANCE, "maintenance-event", "NONE"),
    ]


@pytest.mark.parametrize("kind", ["host-unreachable", "disk-full"])
def test_error_names_missing_node(cloud: Any, kind: str) -> None:
    with pytest.raises(NotFound, match="Node slice not found"):
        add(cloud, kind, node="slice")
    make_slice(cloud)
    with pytest.raises(NotFound, match="Did you mean slice"):
        add(cloud, kind, node="slcie")
    with pytest.raises(NotFound, match="no worker 4: its workers are 0 to 3"):
        add(cloud, kind, node="slice", worker=4)
    assert remote_control.faults(cloud.local_cloud) == []
    later = happened(cloud, add(cloud, kind, node="another", seconds=0.01))
    assert "Node another not found" in later["error"]


def test_one_worker_refuses_key(cloud: Any) -> None:
    fault = add(cloud, "ssh-key-refused", node="slice", worker=1, times="unlimited")
    refusing = [cloud.in_loop(cloud.host.refuses_key, name) for name in SLICE]
    assert refusing == [False, True, False, False]
    assert not cloud.in_loop(cloud.host.refuses_key, INSTANCE)
    state = remote_control.fault(cloud.local_cloud, fault["id"])
    assert state["applied"] == 1
