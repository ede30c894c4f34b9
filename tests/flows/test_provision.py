"""Stacks are created, kept and deleted on the local cloud with the official clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.polling import async_until
from tests.support.projects import Project, provision
from tests.support.stack_checks import call, check_made, check_nothing_left, check_second_up
from tpuctl.api import Down, Tpuctl
from tpuctl.cloud.operations import compute_operation, long_operation
from tpuctl.errors import Conflict, NotFound
from tpuctl.flows.stack.down import prepare_down, verify_down
from tpuctl.local_cloud import remote_control, server_process
from tpuctl.model.events import Event, Outcome, StepFinished
from tpuctl.resources.access.iam_grants import ROLES

MakeStack = Callable[..., Tpuctl]


async def test_up_creates_what_the_stack_file_specifies(make_stub_stack: MakeStack) -> None:
    stack = make_stub_stack(extra="network: {tags: [mine], allow: ['tcp:6006']}\n")
    await provision(stack)
    node = await check_made(stack, type_name="v2-8", tags=["mine"], ports=["22", "6006"])
    assert node.health.name == "HEALTHY"
    assert node.labels["tpuctl-stack"] == stack.stack.name
    assert node.network_config.network.endswith("projects/local-project/global/networks/default")


async def test_spot_node_without_external_addresses(make_stub_stack: MakeStack) -> None:
    stack = make_stub_stack(extra="network: {ssh: internal}\n")
    text = stack.stack_file.read_text("utf-8")
    stack.stack_file.write_text(text.replace("type: v2-8", "type: v2-8, capacity: spot"), "utf-8")
    await provision(stack)
    name = f"projects/local-project/locations/us-central1-b/nodes/{stack.stack.names.node}"
    raw = await call(stack, "tpu", "get_node", {"name": name})
    assert raw.scheduling_config.spot
    assert not raw.network_config.enable_external_ips


async def test_up_is_idempotent(make_stack: MakeStack, events: list[Event]) -> None:
    stack = make_stack()
    await stack.up()
    again = make_stack(name=stack.stack.name)  # as from another folder
    await check_second_up(again, events)


async def test_independent_resources_are_created_in_parallel(
    make_stub_stack: MakeStack, null_cloud: server_process.LocalCloud, events: list[Event]
) -> None:
    """The firewall rule is created while the service account is still pending."""
    fault = remote_control.add_fault(null_cloud, "hold", method="CreateServiceAccount")["id"]
    bringing_up = asyncio.create_task(provision(make_stub_stack()))
    await async_until(lambda: "firewall" in finished(events), "the firewall")
    assert not {"account", "node"} & finished(events)
    await asyncio.to_thread(remote_control.release, null_cloud, fault)
    await bringing_up
    assert {"account", "node"} <= finished(events)


def finished(events: list[Event]) -> set[str]:
    """The kinds of finished steps."""
    ended = (event for event in events if isinstance(event, StepFinished))
    return {event.address.partition("/")[0] for event in ended}


async def test_down_deletes_everything_but_the_bucket(make_stub_stack: MakeStack) -> None:
    stack = make_stub_stack()
    await provision(stack)
    down = await stack.down()
    states = {resource.address.partition("/")[0]: resource.state for resource in down.remaining}
    assert states == {
        "project": "kept",
        "apis": "kept",
        "network": "kept",  # the project's default network
        "firewall": "deleted",
        "bucket": "kept",
        "grants": "deleted",
        "project-grants": "deleted",
        "role": "kept",  # shared by the project's stacks; a role alone grants nothing
        "node": "deleted",
        "account": "deleted",
    }
    assert down.leaks == ()
    status = await stack.status()
    assert status.nodes == ()
    assert status.bucket == stack.stack.bucket

    policy = await stack.cloud.call(
        "policy", stack.cloud.client("storage").bucket(stack.stack.bucket).get_iam_policy
    )
    members = {member for binding in policy.bindings for member in binding["members"]}
    assert not any(stack.stack.name in member for member in members if "serviceAccount" in member)


async def test_down_with_delete_bucket_leaves_nothing(make_stub_stack: MakeStack) -> None:
    stack = make_stub_stack()
    await provision(stack)
    bucket = stack.cloud.client("storage").bucket(stack.stack.bucket)
    for number in range(40):
        await stack.cloud.call("upload", bucket.blob(f"a/{number}").upload_from_string, "x")
    down = await stack.down(delete_bucket=True)
    await check_nothing_left(stack, down)
    assert {resource.state for resource in down.remaining if resource.is_billable} == {"deleted"}
    again = await stack.down(delete_bucket=True)
    assert again.leaks == ()


async def test_down_deletes_node_in_zone_removed_from_stack_file(
    make_stub_stack: MakeStack,
) -> None:
    before = make_stub_stack(zone="us-central1-b")
    await provision(before)
    moved = make_stub_stack(name=before.stack.name, zone="us-central1-c")
    down = await moved.down()
    assert "node/us-central1-b/" + before.stack.names.node in [
        resource.address for resource in down.remaining
    ]
    assert (await before.status()).nodes == ()


async def test_node_of_another_stack_is_a_conflict(make_stub_stack: MakeStack) -> None:
    stack = make_stub_stack()
    operation = await call(
        (await _with_apis(stack)),
        "tpu",
        "create_node",
        {
            "parent": "projects/local-project/locations/us-central1-b",
            "node_id": stack.stack.names.node,
            "node": {
                "accelerator_type": "v2-8",
                "runtime_version": "tpu-ubuntu2204-base",
                "labels": {"tpuctl-stack": "another"},
            },
        },
    )
    assert operation is not None
    with pytest.raises(Conflict, match="another"):
        await provision(stack)
    down = await stack.down()
    assert [
        resource.state for resource in down.remaining if resource.address.startswith("node/")
    ] == ["kept"]


async def _with_apis(stack: Tpuctl) -> Tpuctl:
    """Enable the APIs as `up` does, and nothing else."""
    from tpuctl.engine.apply import apply
    from tpuctl.engine.planner import observe, plan_up
    from tpuctl.model.events import ignore
    from tpuctl.resources.project.enabled_apis import Services

    resources = [Services(stack.stack, stack.cloud)]
    await apply(plan_up(resources, await observe(resources)), resources, ignore)
    return stack


async def test_verify_down_reports_remaining_resources(make_stub_stack: MakeStack) -> None:
    stack = make_stub_stack()
    await provision(stack)
    teardown = await prepare_down(stack.stack, stack.cloud, delete_bucket=True)
    proof, errors = await verify_down(teardown, stack.cloud)  # before anything was deleted
    assert not errors
    remaining = {
        resource.address.partition("/")[0] for resource in proof if resource.state == "remains"
    }
    assert remaining == {"node", "bucket", "firewall", "grants", "project-grants", "account"}
    leaks = {resource.address.partition("/")[0] for resource in Down(proof).leaks}
    assert leaks == {"node", "bucket"}


@pytest.mark.soak
async def test_down_while_node_is_being_deleted(
    make_stack: MakeStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted by another client, or by an earlier request whose response was lost."""
    home = tmp_path / "cloud"
    monkeypatch.setenv("TPUCTL_LOCAL_HOME", str(home))
    server_process.start(home, pace="quick")
    try:
        stack = make_stack()
        await stack.up()
        name = f"projects/local-project/locations/us-central1-b/nodes/{stack.stack.names.node}"
        await call(stack, "tpu", "delete_node", {"name": name})
        assert (await stack.down()).leaks == ()
        assert (await stack.status()).nodes == ()
    finally:
        server_process.stop(home)


async def test_up_starts_stopped_node(make_stack: MakeStack) -> None:
    stack = make_stack()
    await stack.up()
    name = f"projects/local-project/locations/us-central1-b/nodes/{stack.stack.names.node}"
    operation = await call(stack, "tpu", "stop_node", {"name": name})
    await long_operation(stack.cloud, "tpu", operation.operation, subject="node", seconds=120)
    assert (await stack.node()).state == "STOPPED"
    await stack.up()
    assert (await stack.node()).state == "READY"
    transport = (await stack.transports())[0]
    assert (await transport.run(["true"])).exit_code == 0
    await transport.close()


async def test_down_keeps_foreign_grants(make_stub_stack: MakeStack) -> None:
    stack = make_stub_stack()
    await provision(stack)
    bucket = stack.cloud.client("storage").bucket(stack.stack.bucket)
    policy = await stack.cloud.call("policy", bucket.get_iam_policy, requested_policy_version=3)
    policy.version = 3
    member = f"serviceAccount:{stack.stack.service_account}"
    policy.bindings += [{"role": "roles/storage.objectViewer", "members": {member}}]
    policy.bindings += [{"role": ROLES[0], "members": {"user:colleague@example.com"}}]
    await stack.cloud.call("policy", bucket.set_iam_policy, policy)
    await stack.down()
    policy = await stack.cloud.call("policy", bucket.get_iam_policy, requested_policy_version=3)
    deleted = f"deleted:{member}?uid="  # how Google shows a deleted account
    roles = {
        binding["role"]
        for binding in policy.bindings
        if any(holder.startswith((member, deleted)) for holder in binding["members"])
    }
    assert roles == {"roles/storage.objectViewer"}
    colleague = {
        binding["role"]
        for binding in policy.bindings
        if "user:colleague@example.com" in binding["members"]
    }
    assert colleague == {ROLES[0]}


async def test_changed_type_is_a_conflict(make_stub_stack: MakeStack) -> None:
    stack = make_stub_stack()
    await provision(stack)
    bigger = make_stub_stack(name=stack.stack.name, type_name="v3-8")
    with pytest.raises(Conflict, match="v2-8"):
        await provision(bigger)
    assert [node.state for node in (await stack.status()).nodes] == ["READY"]


async def test_unknown_project_is_reported(make_stub_stack: MakeStack) -> None:
    stack = make_stub_stack()
    text = stack.stack_file.read_text("utf-8")
    stack.stack_file.write_text(text.replace("local-project", "absent-project"), "utf-8")
    with pytest.raises(NotFound, match="absent-project"):
        await provision(stack)


async def test_up_creates_network_without_default_network(project: Project) -> None:
    """In a project of its own, whose default network was deleted after a first `up`."""
    first = project.stack()
    await first.provision()
    await first.stack.down()
    await _remove_default_network(first.stack)
    bench = project.stack()
    stack = bench.stack
    await bench.provision()
    network = await call(
        stack, "networks", "get", project=project.id, network=stack.stack.names.network
    )
    assert network.auto_create_subnetworks
    where = {"project": project.id, "firewall": stack.stack.names.worker_rule}
    rule = await call(stack, "firewalls", "get", **where)
    assert rule.network.endswith(f"/{network.name}")
    assert list(rule.source_tags) == list(rule.target_tags) == [stack.stack.names.tag]
    ports = [ports.partition("-") for entry in rule.allowed for ports in entry.ports]
    for port in (8470, 8471, 8474, 8476, 8482, 11211):  # jax-ml/jax#35905
        assert any(int(first) <= port <= int(last or first) for first, _, last in ports), port
    assert (await stack.plan()).plan.is_empty
    down = await stack.down()
    assert [
        resource.state for resource in down.remaining if resource.address == "network/main"
    ] == ["deleted"]
    with pytest.raises(NotFound):
        await call(stack, "networks", "get", project=project.id, network=network.name)
    with pytest.raises(NotFound):
        await call(stack, "firewalls", "get", **where)


async def _remove_default_network(stack: Tpuctl) -> None:
    project = stack.stack.project
    for rule in await call(stack, "firewalls", "list", project=project):
        operation = await call(
            stack, "firewalls", "delete_unary", project=project, firewall=rule.name
        )
        await compute_operation(stack.cloud, operation, subject=rule.name, seconds=120)
    operation = await call(stack, "networks", "delete_unary", project=project, network="default")
    await compute_operation(stack.cloud, operation, subject="default", seconds=120)


async def test_concurrent_up_by_two_users(make_stack: MakeStack) -> None:
    first = make_stack()
    other = make_stack(name=first.stack.name)
    await asyncio.gather(first.up(), other.up())
    assert [node.state for node in (await first.status()).nodes] == ["READY"]
    assert (await first.plan()).plan.is_empty
    assert (await first.down(delete_bucket=True)).leaks == ()


async def test_failure_is_reported_once(make_stub_stack: MakeStack, events: list[Event]) -> None:
    first = make_stub_stack()
    await provision(first)
    # A bucket with the second stack's name already exists.
    second = make_stub_stack()
    bucket_owner = make_stub_stack(name=second.stack.name)
    bucket = bucket_owner.cloud.client("storage").bucket(bucket_owner.stack.bucket)
    await bucket_owner.cloud.call("bucket", bucket.create, location="us-central1")
    with pytest.raises(Conflict, match=bucket_owner.stack.bucket):
        await provision(second)
    assert not [
        event
        for event in events
        if isinstance(event, StepFinished) and event.outcome is Outcome.FAILED
    ]


async def test_slice_has_a_machine_per_worker(make_stack: MakeStack) -> None:
    stack = make_stack(type_name="v2-32", zone="europe-west4-a")
    await stack.up()
    node = await stack.node()
    assert len(set(node.addresses)) == 4
    transports = await stack.transports()
    answers = await asyncio.gather(
        *(transport.run(["hostname"]) for transport in transports.values())
    )
    assert len({answer.stdout for answer in answers}) in (1, 4)
    assert all(answer.exit_code == 0 for answer in answers)
    await asyncio.gather(*(transport.close() for transport in transports.values()))
    await stack.down(delete_bucket=True)


async def test_up_updates_labels_of_existing_resources(make_stub_stack: MakeStack) -> None:
    stack = make_stub_stack()
    await provision(stack)
    extra = "labels: {team: nlp}\naccess: {user: another}\n"
    labeled = make_stub_stack(name=stack.stack.name, extra=extra)
    await provision(labeled)
    creator = {"tpuctl-user": stack.stack.user}
    labels = {"tpuctl-stack": stack.stack.name, "team": "nlp", **creator}
    bucket = await call(labeled, "storage", "get_bucket", stack.stack.bucket)
    assert bucket.labels == labels
    name = f"projects/local-project/locations/us-central1-b/nodes/{stack.stack.names.node}"
    node = await call(labeled, "tpu", "get_node", {"name": name})
    assert node.labels == labels
    assert (await labeled.plan()).plan.is_empty
