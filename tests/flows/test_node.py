"""TPU nodes with their controllers, on the local cloud."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from tests.support.locations import PROJECT, US_PARENT, US_ZONE
from tests.support.projects import provision
from tests.support.stack_jobs import request
from tpuctl.api import Tpuctl
from tpuctl.cloud.operations import compute_operation, long_operation
from tpuctl.errors import Conflict, Denied, NotFound
from tpuctl.flows.machines.controller import is_controller_gone
from tpuctl.local_cloud import remote_control, server_process
from tpuctl.model.events import Event, WarningIssued
from tpuctl.model.plan import Action
from tpuctl.polling import wait_until
from tpuctl.remote.transport import Transport
from tpuctl.resources.access.iam_grants import ROLES

MakeStack = Callable[..., Tpuctl]
WHERE = {"project": PROJECT, "zone": US_ZONE}

# A node is a TensorFlow server, whose image is built if missing.
NODE_MARKS = [pytest.mark.tensorflow("2.12.1"), pytest.mark.timeout(900)]


def node_marks(function: Any) -> Any:
    for mark in NODE_MARKS:
        function = mark(function)
    return function


@pytest.fixture
def make_node(make_stub_stack: MakeStack) -> MakeStack:
    return _with_node(make_stub_stack)


@pytest.fixture
def make_with_machines(make_stack: MakeStack) -> MakeStack:
    return _with_node(make_stack)


def _with_node(make_stack: MakeStack) -> MakeStack:
    def make(*, tpu: str = "", **options: Any) -> Tpuctl:
        runtime = f"auto, kind: node{', ' if tpu else ''}{tpu}"
        return make_stack(runtime=runtime, zone=US_ZONE, **options)

    return make


async def node_of(stack: Tpuctl) -> Any:
    return await request(
        stack, "tpu_v1", "get_node", {"name": f"{US_PARENT}/nodes/{stack.stack.names.node}"}
    )


async def controller_of(stack: Tpuctl) -> Any:
    return await request(stack, "instances", "get", **WHERE, instance=stack.stack.names.controller)


async def remaining_resources(stack: Tpuctl) -> list[str]:
    """Names of machines, nodes and disks that have the stack's label."""
    label = stack.stack.name
    resources = [
        *await request(stack, "tpu_v1", "list_nodes", {"parent": US_PARENT}),
        *await request(stack, "instances", "list", **WHERE),
        *await request(stack, "disks", "list", **WHERE),
    ]
    return [
        resource.name.rpartition("/")[2]
        for resource in resources
        if resource.labels.get("tpuctl-stack") == label
    ]


async def output_of(transport: Transport, *argv: str) -> str:
    return (await transport.run(argv)).check("a command").stdout.decode().strip()


async def variables(stack: Tpuctl) -> dict[str, str]:
    """The environment of a login shell on the controller."""
    transport = (await stack.transports())[0]
    try:
        text = await output_of(transport, "bash", "-lc", "env")
    finally:
        await transport.close()
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def warning_summaries(events: list[Event]) -> list[str]:
    """Summaries of warnings, including quota warnings caused by other tests' stacks."""
    return [event.diagnostic.summary for event in events if isinstance(event, WarningIssued)]


@node_marks
async def test_up_creates_node_and_controller_and_down_deletes_them(
    make_with_machines: MakeStack, events: list[Event]
) -> None:
    stack = make_with_machines(
        tpu="data_disks: [{size_gb: 20, mode: read-only}], metadata: {mine: yes-it-is}",
        extra="controller: {machine_type: n1-standard-2, disk_gb: 60, disk_type: pd-ssd}\n"
        "network: {tags: [mine]}\nlabels: {team: korean}\n",
    )
    name = stack.stack.name
    await stack.up()

    node = await node_of(stack)
    assert (node.state.name, node.accelerator_type) == ("READY", "v2-8")
    assert node.tensorflow_version == stack.stack.runtime.version
    labels = {"tpuctl-stack": name, "tpuctl-user": stack.stack.user, "team": "korean"}
    assert node.labels == labels
    assert IPv4Network(node.cidr_block).subnet_of(IPv4Network("10.240.0.0/12"))
    assert not node.scheduling_config.preemptible

    controller = await controller_of(stack)
    assert controller.status == "RUNNING"
    assert controller.machine_type.endswith(f"{US_ZONE}/machineTypes/n1-standard-2")
    assert controller.labels == labels
    assert {*controller.tags.items} == {f"{name}-tpu", "mine"}
    (account,) = controller.service_accounts
    assert account.email == stack.stack.service_account
    (interface,) = controller.network_interfaces
    assert interface.access_configs[0].nat_i_p
    metadata = {item.key: item.value for item in controller.metadata.items}
    assert (metadata["mine"], metadata["tpu-name"]) == ("yes-it-is", f"{name}-tpu")
    boot, data = sorted(controller.disks, key=lambda disk: not disk.boot)
    assert (boot.auto_delete, data.auto_delete) == (True, False)
    assert data.source.endswith(f"{US_ZONE}/disks/{name}-data-0")
    assert data.mode == "READ_ONLY"
    boot_disk = await request(stack, "disks", "get", **WHERE, disk=boot.source.rpartition("/")[2])
    assert boot_disk.size_gb == 60
    assert boot_disk.type_.endswith("pd-ssd")
    tensorflow = "-".join(str(stack.stack.runtime.tensorflow).split("."))
    assert f"ml-images/global/images/tf-{tensorflow}" in boot_disk.source_image

    bucket = stack.cloud.client("storage").bucket(stack.stack.bucket)
    policy = await stack.cloud.call("policy", bucket.get_iam_policy, requested_policy_version=3)
    agent = f"serviceAccount:{node.service_account}"
    assert {binding["role"] for binding in policy.bindings if agent in binding["members"]} >= {
        *ROLES
    }

    (endpoint,) = node.network_endpoints
    environment = await variables(stack)
    assert environment["TPU_NAME"] == f"{name}-tpu"
    assert (environment["TPU_ZONE"], environment["TPU_PROJECT"]) == (US_ZONE, PROJECT)
    assert (
        environment["KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"]
        == f"grpc://{endpoint.ip_address}:{endpoint.port}"
    )

    assert "TPU nodes unavailable to most projects" in warning_summaries(events)
    events.clear()
    assert (await stack.up()).plan.is_empty
    assert "unavailable to most projects" not in " ".join(warning_summaries(events)), (
        "no warning if a node exists"
    )

    assert len(await remaining_resources(stack)) == 4
    assert (await stack.down(delete_bucket=True)).leaks == ()
    assert await remaining_resources(stack) == []


@pytest.mark.soak
@node_marks
async def test_up_starts_stopped_controller_and_updates_node_address(
    make_with_machines: MakeStack,
) -> None:
    stack = make_with_machines()
    await stack.up()
    assert not await is_controller_gone(stack.stack, stack.cloud)
    operation = await request(
        stack, "instances", "stop_unary", **WHERE, instance=stack.stack.names.controller
    )
    await compute_operation(stack.cloud, operation, subject="stop", seconds=60)
    assert await is_controller_gone(stack.stack, stack.cloud), "jobs on the controller have ended"
    path = f"{US_PARENT}/nodes/{stack.stack.names.node}"
    operation = await request(stack, "tpu_v1", "delete_node", {"name": path})
    await long_operation(stack.cloud, "tpu_v1", operation.operation, subject="node", seconds=60)

    prepared = await stack.up()
    actions = {change.address: change.action for change in prepared.plan if change.is_work}
    assert actions[f"tpu/{stack.stack.names.node}"] is Action.CREATE
    assert actions[f"controller/{stack.stack.names.controller}"] is Action.UPDATE
    assert (await controller_of(stack)).status == "RUNNING"
    (endpoint,) = (await node_of(stack)).network_endpoints
    environment = await variables(stack)
    assert (
        environment["KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"]
        == f"grpc://{endpoint.ip_address}:{endpoint.port}"
    )
    await stack.down(delete_bucket=True)


@pytest.mark.soak
async def test_concurrent_stacks_get_separate_node_ranges(make_node: MakeStack) -> None:
    first, other = make_node(), make_node()
    await asyncio.gather(provision(first), provision(other))
    ranges = [IPv4Network((await node_of(stack)).cidr_block) for stack in (first, other)]
    assert not ranges[0].overlaps(ranges[1])
    await asyncio.gather(first.down(delete_bucket=True), other.down(delete_bucket=True))


@pytest.mark.soak
async def test_conflicting_node_range_is_replaced_by_the_next(
    make_node: MakeStack, null_cloud: server_process.LocalCloud
) -> None:
    """As if the range were used by a peered network, which cannot be listed."""
    stack = make_node()
    fault = remote_control.add_fault(
        null_cloud,
        "error",
        method="google.cloud.tpu.v1.Tpu/CreateNode",
        google_error="cidr-conflict",
    )
    try:
        await provision(stack)
        assert remote_control.fault(null_cloud, fault["id"])["applied"] == 1
    finally:
        remote_control.remove_fault(null_cloud, fault["id"])
    assert (await node_of(stack)).cidr_block != "10.240.0.0/29"
    await stack.down(delete_bucket=True)


@pytest.mark.soak
async def test_lost_responses_create_no_duplicates(
    make_node: MakeStack, null_cloud: server_process.LocalCloud
) -> None:
    stack = make_node(tpu="data_disks: [{size_gb: 20}]")
    methods = ("google.cloud.tpu.v1.Tpu/CreateNode", "Instances/Insert", "Disks/Insert")
    faults = [
        remote_control.add_fault(null_cloud, "drop-response", method=method) for method in methods
    ]
    try:
        await provision(stack)
        assert [remote_control.fault(null_cloud, fault["id"])["applied"] for fault in faults] == [
            1,
            1,
            1,
        ]
    finally:
        remote_control.remove_all_faults(null_cloud)
    names = stack.stack.names
    assert {*await remaining_resources(stack)} == {names.node, names.controller, names.disk(0)}
    assert (await stack.plan()).plan.is_empty
    await stack.down(delete_bucket=True)


@node_marks
async def test_up_recreates_preempted_node_and_authorizes_second_key(
    make_with_machines: MakeStack,
    local_cloud: server_process.LocalCloud,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stack = make_with_machines(
        tpu="capacity: preemptible", extra="network: {node_range: 10.250.0.0/28}\n"
    )
    await stack.up()
    node = await node_of(stack)
    assert node.scheduling_config.preemptible
    assert IPv4Network(node.cidr_block).subnet_of(IPv4Network("10.250.0.0/28"))
    remote_control.add_fault(local_cloud, "preempt", node=stack.stack.names.node)

    async def is_preempted() -> bool | None:
        return (await node_of(stack)).state.name == "PREEMPTED" or None

    await wait_until(is_preempted, description="preemption", seconds=120)
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path / "other laptop"))
    again = Tpuctl(stack.stack_file, cloud="local")
    prepared = await again.up()
    work = {change.address: change for change in prepared.plan if change.is_work}
    assert "PREEMPTED" in work[f"tpu/{stack.stack.names.node}"].because
    assert work[f"controller/{stack.stack.names.controller}"].fields == ("ssh-keys",)
    assert (await node_of(stack)).state.name == "READY"
    assert (await variables(again))["TPU_NAME"] == stack.stack.names.node
    await stack.down(delete_bucket=True)


async def test_controller_with_tpu_vm(make_stub_stack: MakeStack) -> None:
    stack = make_stub_stack(
        zone=US_ZONE, extra="controller: {machine_type: n1-standard-1}\nlimits: {idle: null}\n"
    )
    await provision(stack)
    controller = await controller_of(stack)
    assert controller.status == "RUNNING"
    (boot,) = controller.disks
    disk = await request(stack, "disks", "get", **WHERE, disk=boot.source.rpartition("/")[2])
    assert "ubuntu-os-cloud" in disk.source_image
    assert "tpu-name" not in {item.key for item in controller.metadata.items}
    assert (await stack.plan()).plan.is_empty
    assert (await stack.down(delete_bucket=True)).leaks == ()
    assert await remaining_resources(stack) == []


async def test_conflicting_node_range_in_stack_file_is_rejected(make_node: MakeStack) -> None:
    """10.128.0.0/20 is the us-central1 subnetwork of every auto mode network."""
    stack = make_node(extra="network: {node_range: 10.128.0.0/29}\n")
    with pytest.raises(Conflict, match=r"10\.128\.0\.0/29") as caught:
        await provision(stack)
    assert "node_range" in caught.value.diagnostics[0].hint
    await stack.down(delete_bucket=True)


async def test_denied_tpu_node_suggests_tpu_vm(
    make_node: MakeStack, null_cloud: server_process.LocalCloud, events: list[Event]
) -> None:
    stack = make_node()
    remote_control.change_settings(null_cloud, nodes="denied")
    try:
        with pytest.raises(Denied) as caught:
            await provision(stack)
    finally:
        remote_control.change_settings(null_cloud, nodes="allowed")
    change = f"    tpu: {{kind: vm, runtime: tpu-vm-tf-{stack.stack.runtime.tensorflow}}}"
    assert caught.value.exit_code == 77
    assert change in caught.value.diagnostics[0].hint
    hints = [event.diagnostic.hint for event in events if isinstance(event, WarningIssued)]
    assert [change in hint for hint in hints].count(True) == 1
    assert await remaining_resources(stack) == [], "no controller without a node"
    assert (await stack.down(delete_bucket=True)).leaks == ()


def _enable_apis(stack: Tpuctl) -> Callable[..., Any]:
    """Enable what listing resources needs, as `up` does first."""
    apis = ["compute.googleapis.com", "tpu.googleapis.com"]

    def enable(**options: Any) -> Any:
        return stack.cloud.client("services").batch_enable_services(
            {"parent": f"projects/{PROJECT}", "service_ids": apis}, **options
        )

    return enable


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"extra": "controller: {image: ubuntu-1404-lts}\n"},
            r"controller\.image is ubuntu-1404-lts",
        ),
        ({"tpu": "data_disks: [{name: nowhere}]"}, "no disk nowhere"),
    ],
    ids=["image", "disk"],
)
async def test_missing_resource_fails_before_changes(
    make_node: MakeStack, settings: dict[str, str], message: str
) -> None:
    stack = make_node(**settings)
    await stack.cloud.call("APIs", _enable_apis(stack))
    with pytest.raises(NotFound, match=message):
        await provision(stack)
    assert await remaining_resources(stack) == []


async def test_foreign_instance_is_not_adopted_or_deleted(make_node: MakeStack) -> None:
    stack = make_node()
    await stack.cloud.call("APIs", _enable_apis(stack))
    name = stack.stack.names.controller
    operation = await request(
        stack,
        "instances",
        "insert_unary",
        **WHERE,
        instance_resource={
            "name": name,
            "machine_type": f"zones/{US_ZONE}/machineTypes/n1-standard-1",
            "disks": [
                {
                    "boot": True,
                    "initialize_params": {
                        "source_image": "projects/ubuntu-os-cloud/global/images/family/"
                        "ubuntu-2204-lts"
                    },
                }
            ],
            "network_interfaces": [{"network": "global/networks/default"}],
        },
    )
    await compute_operation(stack.cloud, operation, subject="instance", seconds=60)
    with pytest.raises(Conflict, match="not part of stack"):
        await provision(stack)
    down = await stack.down()
    assert [
        resource.state for resource in down.remaining if resource.address == f"controller/{name}"
    ] == ["kept"]
    assert (await controller_of(stack)).status == "RUNNING"
