"""Resources that stacks left behind are found in every zone, with the command to delete them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.locations import ZONE
from tests.support.projects import Bench, Project
from tpuctl.api import Tpuctl
from tpuctl.cloud.operations import compute_operation, long_operation
from tpuctl.errors import Denied, NotFound, Usage
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import WarningIssued
from tpuctl.model.status.inventory import find_orphaned


async def delete_node(bench: Bench, client: str = "tpu_v1") -> None:
    """Delete only the node, as a user might in the console."""
    parent = f"projects/{bench.stack.project}/locations/{ZONE}"
    name = f"{parent}/nodes/{bench.stack.stack.names.node}"
    operation = await bench.call(client, "delete_node", {"name": name})
    await long_operation(
        bench.stack.cloud, client, operation.operation, subject="the node", seconds=30
    )


async def delete_controller(bench: Bench) -> None:
    operation = await bench.call(
        "instances",
        "delete_unary",
        project=bench.stack.project,
        zone=ZONE,
        instance=bench.stack.stack.names.controller,
    )
    await compute_operation(bench.stack.cloud, operation, subject="the controller", seconds=120)


async def left(bench: Bench) -> dict[str, str]:
    """Orphaned addresses of this stack with the reason."""
    everything = await bench.reopen().orphans()
    name = bench.stack.stack.name
    return {
        orphan.item.address: orphan.reason
        for orphan in find_orphaned(everything)
        if orphan.item.stack == name
    }


def stacks(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {stack["stack"]: stack for stack in data["stacks"]}


async def test_no_orphans_of_running_and_deleted_stacks(project: Project) -> None:
    working, deleted = project.stack(extra="controller: {}"), project.stack("kind: node")
    await asyncio.gather(working.provision(), deleted.provision())
    await deleted.stack.down()
    assert await left(working) == {}
    assert await left(deleted) == {}
    code, out, _ = working.type("orphans")
    assert code == 0
    assert f"No leftover resources in project {project.id}." in out
    assert "2 buckets are kept on purpose and charged on Google;" in out
    code, out, _ = working.type("orphans", "--all")
    assert code == 0
    rows = [" ".join(line.split()) for line in out.splitlines()]
    node = f"node/{ZONE}/{working.stack.stack.names.node}"
    assert any(row.startswith(f"{node} ") and row.endswith("$8.81 in use") for row in rows)
    assert f"bucket/{deleted.stack.stack.bucket}" in out


async def test_node_without_controller_and_controller_without_node_are_orphans(
    project: Project,
) -> None:
    without_node, without_controller = project.stack("kind: node"), project.stack("kind: node")
    await asyncio.gather(without_node.provision(), without_controller.provision())
    await asyncio.gather(delete_node(without_node), delete_controller(without_controller))
    orphans = await left(without_node)
    controller = f"controller/{ZONE}/{without_node.stack.stack.names.controller}"
    assert orphans == {controller: "no TPU in its zone"}
    tpu = f"tpu/{ZONE}/{without_controller.stack.stack.names.node}"
    assert (await left(without_controller))[tpu] == "its controller no longer exists"

    answer = without_node.answer("orphans")
    assert (answer["status"], answer["exit_code"]) == ("failed", 1)
    data = answer["data"]
    assert data["per_hour"] == pytest.approx(8.8 + 0.0573, abs=1e-3)
    assert data["complete"] is True
    group = stacks(data)[without_node.stack.stack.name]
    assert group["in_use"] is False
    (orphaned_row,) = [row for row in group["resources"] if row["orphaned"]]
    assert (orphaned_row["kind"], orphaned_row["zone"], orphaned_row["reason"]) == (
        "controller",
        ZONE,
        "no TPU in its zone",
    )
    assert orphaned_row["per_hour"] == pytest.approx(0.0573)


async def test_suggested_command_deletes_orphans(project: Project, tmp_path: Path) -> None:
    bench = project.stack("data_disks: [{size_gb: 20}]")
    await bench.provision()
    await delete_node(bench, "tpu")
    empty = tmp_path / "empty"
    empty.mkdir()
    code, out, _ = bench.type("orphans", "--project", project.id, folder=empty)
    assert code == 1, out
    assert "of 1 stack" in out
    (command,) = [line.split() for line in out.splitlines() if line.startswith("    tpuctl")]
    assert command[1:] == ["down", "--stack", bench.stack.stack.name, "--project", project.id]
    code, _, stderr = bench.type(*command[1:], "--yes", folder=empty)
    assert code == 0, stderr
    code, out, _ = bench.type("orphans", "--project", project.id, folder=empty)
    assert code == 0, out
    assert {item.kind for item in await bench.reopen().orphans()} == {"bucket"}


async def test_node_in_second_zone_is_orphaned(project: Project, null_cloud: LocalCloud) -> None:
    """As after a kill while moving to the next zone."""
    bench = project.stack(zones=f"{ZONE}, us-central1-a", extra="bucket: {allow_egress: true}")
    await bench.provision()
    node = {
        "accelerator_type": "v3-8",
        "runtime_version": "tpu-ubuntu2204-base",
        "labels": {"tpuctl-stack": bench.stack.stack.name},
    }
    parent = f"projects/{project.id}/locations/us-central1-a"
    request = {"parent": parent, "node_id": "second", "node": node}
    operation = await bench.call("tpu", "create_node", request)
    await long_operation(
        bench.stack.cloud, "tpu", operation.operation, subject="the node", seconds=30
    )
    assert await left(bench) == {"node/us-central1-a/second": f"the stack runs in {ZONE}"}
    code, out, _ = bench.type("orphans")
    assert code == 1
    assert "tpuctl up" in out
    assert "tpuctl down" not in out, "it would delete the working node"
    assert (await bench.stack.status()).advice[0].command == "up"
    await bench.provision()
    assert await left(bench) == {}


async def test_free_orphans_do_not_fail_the_command(
    project: Project, null_cloud: LocalCloud
) -> None:
    bench = project.stack("capacity: spot")
    await bench.provision()
    await bench.preempt(null_cloud)
    orphans = await left(bench)
    assert "PREEMPTED" in orphans[f"node/{ZONE}/{bench.stack.stack.names.node}"]
    assert "account" in {address.partition("/")[0] for address in orphans}
    code, out, _ = bench.type("orphans")
    assert code == 0
    assert "none of them billable" in out


async def test_grants_of_deleted_account_are_orphans(project: Project) -> None:
    """The stack's account was deleted manually; the project's policy still contains it."""
    bench = project.stack()
    await bench.provision()
    await delete_node(bench, "tpu")
    account = bench.stack.stack.service_account
    name = f"projects/{project.id}/serviceAccounts/{account}"
    await bench.call("iam", "delete_service_account", request={"name": name})
    orphans = await left(bench)
    assert orphans[f"project-grants/{project.id}"] == "the stack is not running"
    assert not any(address.startswith("account/") for address in orphans)
    assert not (await bench.stack.down()).leaks
    assert await left(bench) == {}


async def test_orphans_by_project_id(project: Project) -> None:
    bench = project.stack()
    await bench.provision()
    by_id = Tpuctl(project=project.id, cloud="local")
    assert by_id.project == project.id
    assert set(await by_id.orphans()) == set(await bench.stack.orphans())
    with pytest.raises(NotFound, match="no-such-project"):
        await Tpuctl(project="no-such-project", cloud="local").orphans()
    with pytest.raises(Usage, match="--project"):
        await Tpuctl(project="x", cloud="local").orphans()


DOUBT = "Permission 'a.b.list' denied on resource 'projects/p' (or it may not exist)."


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("Instances/AggregatedList", "(controller|instance)"),
        ("google.cloud.tpu.v2.Tpu/ListNodes", "node"),
    ],
)
@pytest.mark.parametrize("text", ["", DOUBT])
async def test_denied_listing_of_billable_kind_is_an_error(
    project: Project, null_cloud: LocalCloud, method: str, kind: str, text: str
) -> None:
    """Machines that cannot be listed may be charged, so no command may report that nothing is left.

    Google answers "it may not exist" for existing projects too.
    """
    bench = project.stack()
    await bench.provision()
    wording = {"text": text} if text else {}
    fault = remote_control.add_fault(
        null_cloud, "deny", method=method, project=project.id, times="unlimited", **wording
    )
    for look in (bench.reopen().orphans, bench.reopen().status, bench.reopen().down):
        with pytest.raises(Denied, match=f"the list of every {kind}"):
            await look()
    remote_control.remove_fault(null_cloud, fault["id"])


async def test_orphans_lists_the_others_if_a_kind_cannot_be_listed(
    project: Project, cloud: LocalCloud
) -> None:
    """It never says that nothing is left when it could not ask; its exit code says so, too."""
    bench = project.stack("data_disks: [{size_gb: 10}]")
    await bench.provision()
    method = "google.cloud.tpu.v2.Tpu/ListNodes"
    fault = remote_control.add_fault(cloud, "deny", method=method, times="unlimited")
    code, out, errors = bench.type("orphans")
    assert code == 77
    assert "disk/" not in out, "its machine may be there"
    assert "could not be listed: node" in out
    assert "disk/" in bench.type("orphans", "--all")[1]
    assert "the list of every node" in errors
    await delete_node(bench, "tpu")
    disk = next(
        item for item in await bench.reopen().orphans(lambda *_: None) if item.kind == "disk"
    )
    await bench.call("disks", "delete_unary", project=project.id, zone=ZONE, disk=disk.name)
    code, out, _ = bench.type("orphans")
    remote_control.remove_fault(cloud, fault["id"])
    assert code == 77
    assert f"No leftover resources in project {project.id}." not in out


async def test_denied_listing_of_free_kind_is_a_warning(
    project: Project, null_cloud: LocalCloud
) -> None:
    bench = project.stack()
    await bench.provision()
    for method in ("ListServiceAccounts", "GetIamPolicy"):
        remote_control.add_fault(
            null_cloud, "deny", method=method, project=project.id, times="unlimited"
        )
    bench.events.clear()
    items = await bench.reopen().orphans()
    remote_control.remove_all_faults(null_cloud)
    assert {item.kind for item in items} == {"node", "bucket", "firewall"}
    warned = [
        details.diagnostic.detail for details in bench.events if isinstance(details, WarningIssued)
    ]
    assert len(warned) == 2
    assert any("the list of every account" in detail for detail in warned)
