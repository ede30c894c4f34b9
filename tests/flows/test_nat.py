"""Cloud NAT of a stack: created before its machines, found where it is left, and deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.locations import REGION, ZONE
from tests.support.projects import Bench, Project
from tpuctl.api import Tpuctl
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.cost.cost import nat_cost
from tpuctl.model.events import Event, WarningIssued
from tpuctl.model.plan import Action
from tpuctl.model.status.inventory import find_orphaned

NAT = "network: {ssh: iap, nat: true}"
CURL = "curl -sSv -m 20 https://example.invalid/simple 2>&1; true"


async def routers(bench: Bench) -> dict[str, Any]:
    """The routers of the project in the region, by name."""
    where = {"project": bench.stack.project, "region": bench.stack.stack.region}
    return {router.name: router for router in await bench.call("routers", "list", where)}


async def actions(bench: Bench) -> dict[str, Action]:
    plan = (await bench.reopen().plan()).plan
    return {change.address: change.action for change in plan}


async def delete_node(bench: Bench) -> None:
    stack = bench.stack.stack
    name = f"projects/{stack.project}/locations/{stack.zone}/nodes/{stack.names.node}"
    await bench.call("tpu", "delete_node", {"name": name})


def rewrite(bench: Bench, before: str, after: str) -> None:
    path = bench.stack.stack_file
    path.write_text(path.read_text("utf-8").replace(before, after), "utf-8")


async def test_stack_with_nat(project: Project) -> None:
    bench = project.stack("", f"{NAT}\ncontroller: {{}}")
    prepared = await bench.provision()
    stack = bench.stack.stack
    for machine in (f"node/{stack.names.node}", f"controller/{stack.names.controller}"):
        assert f"nat/{stack.names.nat}" in prepared.plan.after[machine]
    assert not [event for event in bench.events if isinstance(event, WarningIssued)]
    router = (await routers(bench))[stack.names.nat]
    assert router.description == stack.names.ownership
    [subnetwork] = router.nats[0].subnetworks
    assert subnetwork.name.endswith(f"/regions/{stack.region}/subnetworks/default")
    assert (await bench.reopen().plan()).plan.is_empty
    [item] = [item for item in (await bench.stack.status()).inventory if item.kind == "nat"]
    assert (item.address, item.cost) == (f"nat/{stack.region}/{stack.names.nat}", nat_cost())
    assert (await bench.reopen().down(delete_bucket=True)).leaks == ()
    assert await routers(bench) == {}


async def test_nat_of_a_file_without_the_key_is_found_and_deleted(project: Project) -> None:
    bench = project.stack("", NAT)
    await bench.provision()
    rewrite(bench, ", nat: true", "")
    nat = bench.stack.stack.names.nat
    assert not any(address.startswith("nat/") for address in await actions(bench))
    assert nat in await routers(bench)
    await delete_node(bench)
    [orphan] = [
        orphan
        for orphan in find_orphaned(await bench.reopen().orphans())
        if orphan.item.kind == "nat"
    ]
    assert (orphan.item.name, orphan.item.zone) == (nat, REGION)
    assert orphan.reason == "the stack has no machine there"
    assert (await bench.reopen().down(delete_bucket=True)).leaks == ()
    assert await routers(bench) == {}


async def test_another_nat_of_the_subnetwork_is_used(project: Project) -> None:
    first, second = project.stack("", NAT), project.stack("", NAT)
    await first.provision()
    nat = f"nat/{second.stack.stack.names.nat}"
    assert (await actions(second))[nat] is Action.NOTHING
    await second.provision()
    assert {*await routers(first)} == {first.stack.stack.names.nat}
    assert (await second.reopen().down()).leaks == ()
    assert {*await routers(first)} == {first.stack.stack.names.nat}


async def test_nat_moves_to_the_region_of_the_tpu(project: Project) -> None:
    bench = project.stack("", f"{NAT}\nbucket: {{allow_egress: true}}")
    await bench.provision()
    await delete_node(bench)
    rewrite(bench, ZONE, "us-central1-a")
    nat = bench.stack.stack.names.nat
    planned = await actions(bench)
    assert planned[f"nat/{REGION}/{nat}"] is Action.DELETE
    assert planned[f"nat/{nat}"] is Action.CREATE
    moved = Bench(bench.reopen(), bench.events)
    await moved.provision()
    assert (await routers(bench), {*await routers(moved)}) == ({}, {nat})
    assert (await moved.reopen().down(delete_bucket=True)).leaks == ()
    assert await routers(moved) == {}


async def test_nat_stays_with_the_controller(project: Project) -> None:
    """In its region, which the TPU has left."""
    more = "controller: {}\nbucket: {allow_egress: true}"
    bench = project.stack("", f"{NAT}\n{more}", zones=f"{ZONE}, us-central1-a")
    await bench.provision()
    await delete_node(bench)
    await bench.reopen().provision(await bench.reopen().plan("us-central1-a"))
    items = (await bench.reopen().status()).inventory
    assert {item.zone for item in items if item.kind == "nat"} == {REGION, "us-central1"}
    assert (await bench.reopen().plan()).plan.is_empty
    assert (await bench.reopen().down(delete_bucket=True)).leaks == ()


async def test_machine_reaches_internet_with_nat_only(
    make_stack: Callable[..., Tpuctl], local_cloud: LocalCloud, events: list[Event]
) -> None:
    stack = make_stack(extra=NAT)
    await stack.up()
    (worker,) = (await stack.transports()).values()
    assert b"Cloud NAT" not in (await worker.run(["sh", "-c", CURL])).stdout
    client, where = stack.cloud.client("routers"), {"region": stack.stack.region}
    name = stack.stack.names.nat
    await stack.cloud.call(
        "router", client.delete_unary, project=stack.project, router=name, **where
    )
    assert (
        b"no external address, and network default no Cloud NAT"
        in (await worker.run(["sh", "-c", CURL])).stdout
    )
    await stack.down(delete_bucket=True)
