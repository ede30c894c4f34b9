"""`status` shows a stack's resources, their age and cost; `down` reports what remains."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.locations import ZONE
from tests.support.polling import async_until
from tests.support.projects import Project
from tpuctl.api import Tpuctl
from tpuctl.errors import Denied
from tpuctl.flows.stack.down import measure_bucket
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.status.charges import charges_of
from tpuctl.model.status.inventory import InventoryItem
from tpuctl.model.text.names import CACHE

# In US dollars an hour, published: v3-8 in europe-west4-a 8.80 and on spot 2.244, n1-standard-1
# 0.052292; an address 0.005 and on spot 0.0025; pd-standard 0.044 per GB per month of 730 hours.
BOOT = 50 * 0.044 / 730


def by_kind(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {resource["kind"]: resource for resource in data["resources"]}


def hours_later(items: tuple[InventoryItem, ...], hours: float) -> dict[str, tuple[Any, Any]]:
    """By kind: price per hour and cost so far, `hours` after creation."""
    (created,) = {item.created for item in items if item.kind == "node"}
    assert created is not None
    charges = charges_of(items, created + timedelta(hours=hours))
    return {charge.item.kind: (charge.per_hour, charge.so_far) for charge in charges}


async def test_status_of_full_stack(project: Project) -> None:
    bench = project.stack(
        "data_disks: [{size_gb: 100, type: pd-standard}]", "controller: {disk_gb: 50}"
    )
    await bench.provision()
    status = await bench.reopen().status()
    assert {item.kind for item in status.inventory} == {"node", "controller", "disk", "bucket"}
    assert all(item.stack == bench.stack.stack.name for item in status.inventory)
    for listed in status.inventory:
        assert listed.created is not None
        assert abs(datetime.now(UTC) - listed.created) < timedelta(minutes=5)
    costs = hours_later(status.inventory, 3)
    assert costs["node"] == (pytest.approx(8.805), pytest.approx(3 * 8.805))
    assert costs["controller"][0] == pytest.approx(0.057292)
    assert costs["bucket"] == (None, None)
    sizes = sorted(item.size_gb for item in status.inventory if item.kind == "disk")
    assert sizes == [50, 100]
    assert status.advice == ()

    data = bench.answer("status")["data"]
    assert (data["stack"], data["project"]) == (bench.stack.stack.name, project.id)
    assert data["per_hour"] == pytest.approx(8.805 + 0.057292 + 3 * BOOT, abs=1e-4)
    assert data["complete"] is True
    assert data["bucket"] == bench.stack.stack.bucket
    (node,) = data["nodes"]
    assert (node["state"], node["type"], node["zone"]) == ("READY", "v3-8", ZONE)
    kinds = by_kind(data)
    assert kinds["controller"]["type"] == "n1-standard-1"
    assert kinds["bucket"]["price_note"] == "$0.02 per GB per month of stored data"
    assert sum(resource["kind"] == "disk" for resource in data["resources"]) == 2
    assert data["advice"] == []


async def test_status_output(project: Project) -> None:
    bench = project.stack(extra="controller: {}")
    await bench.provision()
    code, out, stderr = bench.type("status")
    assert (code, stderr) == (0, "")
    name = bench.stack.stack.name
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert f"stack {name} in project {project.id}" in rows
    (row,) = [row for row in rows if row.startswith(f"node {name}-tpu READY")]
    assert re.search(r"READY \d+ (s|min) \$8\.81 <?\$0", row)
    (total,) = [row for row in rows if row.startswith("total on Google ")]
    assert "$8.87" in total  # 8.805 + 0.057292 + 0.003 for the controller's disk
    assert "The local cloud is free. These are Google's prices." in rows
    assert "unknown" not in out
    narrow = bench.in_terminal("status", columns=80)
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in narrow.splitlines()]
    assert max(map(len, lines)) <= 80
    plain = bench.in_terminal("--no-color", "status", columns=80)
    assert "\x1b[3" not in plain


async def test_preempted_spot_node_costs_nothing(project: Project, null_cloud: LocalCloud) -> None:
    bench = project.stack("capacity: spot")
    await bench.provision()
    costs = hours_later((await bench.stack.status()).inventory, 1)
    assert costs["node"][0] == pytest.approx(2.244 + 0.0025)
    await bench.preempt(null_cloud)
    data = bench.answer("status")["data"]
    assert by_kind(data)["node"]["per_hour"] == 0
    assert by_kind(data)["node"]["cost_so_far"] is None
    assert (data["per_hour"], data["complete"]) == (0, False)
    (advice,) = data["advice"]
    assert "PREEMPTED" in advice["text"]
    assert advice["command"] == "up"
    code, out, _ = bench.type("status")
    assert code == 0
    assert "unknown" in out
    assert out.rstrip().endswith("To recreate it:\n    tpuctl up")


async def test_status_advises_to_start_stopped_node(project: Project) -> None:
    bench = project.stack()
    await bench.provision()
    name = f"projects/{project.id}/locations/{ZONE}/nodes/{bench.stack.stack.names.node}"
    await bench.call("tpu", "stop_node", {"name": name})

    async def is_stopped() -> bool:
        return (await bench.stack.node()).state == "STOPPED"

    await async_until(is_stopped, "the node having stopped")
    data = bench.answer("status")["data"]
    assert by_kind(data)["node"]["per_hour"] == 0
    assert "To start it" in data["advice"][0]["text"]


async def test_status_of_waiting_request(project: Project, null_cloud: LocalCloud) -> None:
    bench = project.stack("queue: {nodes: 2}, capacity: spot")
    fault = remote_control.add_fault(null_cloud, "stockout", project=project.id, times="unlimited")
    work = asyncio.create_task(bench.provision())
    try:

        async def is_waiting() -> bool:
            items = []
            with suppress(Denied):  # the project is being created
                items = (await bench.reopen().status()).inventory
            return "WAITING_FOR_RESOURCES" in [
                item.state for item in items if item.kind == "queued"
            ]

        await async_until(is_waiting, "the request waiting")
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    data = bench.answer("status")["data"]
    request = by_kind(data)["queued"]
    assert (request["state"], request["type"]) == ("WAITING_FOR_RESOURCES", "v3-8")
    assert request["created"] is not None, "since when"
    assert request["per_hour"] is None, "no cost while waiting"
    assert data["per_hour"] == 0
    assert "is still waiting" in data["advice"][0]["text"]
    remote_control.remove_fault(null_cloud, fault["id"])


async def test_failed_request_holds_quota(project: Project, null_cloud: LocalCloud) -> None:
    """As left by a client that was killed before it could delete it."""
    bench = project.stack("queue: true")
    await bench.provision()
    await bench.stack.down()
    fault = remote_control.add_fault(null_cloud, "queue-failure", project=project.id)
    node = {
        "accelerator_type": "v3-8",
        "runtime_version": "tpu-ubuntu2204-base",
        "labels": {"tpuctl-stack": bench.stack.stack.name},
    }
    parent = f"projects/{project.id}/locations/{ZONE}"
    body = {"tpu": {"node_spec": [{"parent": parent, "node_id": "n", "node": node}]}}
    await bench.call(
        "tpu",
        "create_queued_resource",
        {"parent": parent, "queued_resource_id": "left", "queued_resource": body},
    )

    async def with_failure() -> Any:
        status = await bench.reopen().status()
        return status if status.inventory[0].state == "FAILED" else None

    status = await async_until(with_failure, "the request having failed")
    remote_control.remove_fault(null_cloud, fault["id"])
    (advice,) = status.advice
    assert "left is FAILED and uses quota" in advice.text
    assert advice.command == "up"
    assert [charge for charge in status.charges if charge.item.kind == "queued"] == []


async def test_nodes_of_spot_request_have_spot_price(project: Project) -> None:
    bench = project.stack("queue: {nodes: 2}, capacity: spot")
    await bench.provision()
    status = await bench.stack.status()
    assert {item.kind for item in status.inventory} == {"node", "queued", "bucket"}
    nodes = [charge for charge in status.charges if charge.item.kind == "node"]
    assert [charge.per_hour for charge in nodes] == [pytest.approx(2.2465)] * 2


async def test_status_of_tpu_node_and_of_orphaned_controller(project: Project) -> None:
    bench = project.stack("kind: node, data_disks: [{size_gb: 10}]")
    await bench.provision()
    status = await bench.stack.status()
    assert {item.kind for item in status.inventory} == {"tpu", "controller", "disk", "bucket"}
    assert status.advice == ()
    (node,) = status.nodes
    assert node.endpoints
    name = f"projects/{project.id}/locations/{ZONE}/nodes/{node.name}"
    await bench.call("tpu_v1", "delete_node", {"name": name})

    async def has_no_node() -> bool:
        return not (await bench.stack.status()).nodes

    await async_until(has_no_node, "the node being gone")
    data = bench.answer("status")["data"]
    assert "tpu" not in by_kind(data)
    assert "has no TPU" in data["advice"][0]["text"]


async def test_status_and_down_without_stack_file(project: Project, tmp_path: Path) -> None:
    """The names are enough; the output has commands for the next steps."""
    bench = project.stack("kind: node", f"bucket: {{name: own-name-of-{project.id}}}")
    await bench.provision()
    names = ("--stack", bench.stack.stack.name, "--project", project.id)
    empty = tmp_path / "empty"
    empty.mkdir()
    with_file, by_name = (
        bench.answer("status")["data"],
        bench.answer("status", *names, folder=empty),
    )
    by_name = by_name["data"]
    for data in (with_file, by_name):  # the costs differ by seconds
        data.pop("cost_so_far")
        for row in (*data["resources"], *data["nodes"]):
            row.pop("age_hours", None)
            row.pop("cost_so_far", None)
    assert with_file == by_name

    code, out, _ = bench.type("down", "--yes", *names, folder=empty)
    assert code == 0, out
    assert (await bench.stack.status()).nodes == ()
    assert {item.kind for item in (await bench.reopen().status()).inventory} == {"bucket"}
    code, out, _ = bench.type("status", *names, folder=empty)
    assert "The stack is not running" in out
    code, out, _ = bench.type("down", "--yes", "--delete-bucket", *names, folder=empty)
    assert code == 0
    assert (await bench.reopen().status()).inventory == ()


async def test_status_of_nonexistent_stack(project: Project, tmp_path: Path) -> None:
    bench = project.stack()
    assert (await bench.stack.status()).inventory == (), "`up` creates the project as well"
    await bench.provision()
    names = ("--stack", "mistyped", "--project")
    code, out, stderr = bench.type("status", *names, project.id, folder=tmp_path)
    assert code == 0
    assert "Nothing of the stack was found" in out
    assert f"orphans --all --project {project.id}" in stderr
    for command in (["status"], ["down", "--yes"]):
        code, out, stderr = bench.type(*command, *names, "no-such-project", folder=tmp_path)
        assert (code, out) == (1, "")
        assert "project no-such-project does not exist" in stderr


async def fill(stack: Tpuctl, sizes: dict[str, int]) -> None:
    bucket = stack.cloud.client("storage").bucket(stack.stack.bucket)
    for name, size in sizes.items():
        await stack.cloud.call("upload", bucket.blob(name).upload_from_string, b"x" * size)


async def test_down_reports_size_of_kept_bucket(project: Project) -> None:
    bench = project.stack()
    await bench.provision()
    sizes = {"output/a": 700_000, f"{CACHE}/compiled/b": 700_001, "c": 0}
    await fill(bench.stack, sizes)
    record = (await measure_bucket(bench.stack.cloud, bench.stack.stack.bucket)).bytes - 1_400_001
    assert 0 < record < 2000, "the stack's own record"
    answer = bench.answer("down", "--yes")
    assert answer["exit_code"] == 0
    left = {row["address"].partition("/")[0]: row for row in answer["data"]["remaining"]}
    bucket_row = left["bucket"]
    assert (bucket_row["state"], bucket_row["count_complete"]) == ("kept", True)
    assert bucket_row["objects"] == 4
    assert bucket_row["bytes"] >= 1_400_001
    assert bucket_row["cached_bytes"] == 700_001
    assert bucket_row["per_month"] == pytest.approx(bucket_row["bytes"] / 2**30 * 0.02, abs=1e-4)
    assert left["node"]["state"] == "deleted"
    assert left["node"]["bytes"] is None

    code, out, _ = bench.type("down", "--yes")
    assert code == 0
    assert "kept on request" in out
    size = "1.3 MB in 4 objects (0.7 MB of environments and compiled programs)"
    assert f"{size}, <$0.0001 per month on Google" in " ".join(out.split())  # it may be wrapped
    (last,) = [line for line in out.splitlines() if line.startswith("No billable resources")]
    assert "kept as requested" in last
    code, out, _ = bench.type("down", "--yes", "--delete-bucket")
    assert code == 0
    assert "No billable resources are left." in out.splitlines()


async def test_large_bucket_is_measured_partially(project: Project) -> None:
    bench = project.stack()
    await bench.provision()
    await fill(bench.stack, {f"output/{number}": 10 for number in range(12)})
    name = bench.stack.stack.bucket
    whole = await measure_bucket(bench.stack.cloud, name)
    assert (whole.objects, whole.is_whole) == (13, True)
    part = await measure_bucket(bench.stack.cloud, name, max_objects=5, page_size=5)
    assert (part.objects, part.bytes, part.is_whole) == (5, 50, False)
    exact = await measure_bucket(bench.stack.cloud, name, max_objects=13, page_size=13)
    assert (exact.objects, exact.is_whole) == (13, True)


async def test_down_fails_if_billable_resources_remain(
    project: Project, null_cloud: LocalCloud
) -> None:
    """A node created during `down`."""
    bench = project.stack()
    await bench.provision()
    parent = f"projects/{project.id}/locations/{ZONE}"
    fault = remote_control.add_fault(null_cloud, "hold", method="DeleteNode", project=project.id)
    work = asyncio.create_task(asyncio.to_thread(bench.type, "down", "--yes"))
    await asyncio.to_thread(remote_control.wait_held, null_cloud, fault["id"], 60)
    body = {
        "accelerator_type": "v3-8",
        "runtime_version": "tpu-ubuntu2204-base",
        "labels": {"tpuctl-stack": bench.stack.stack.name},
    }
    request = {"parent": parent, "node_id": "late", "node": body}
    await bench.call("tpu", "create_node", request)
    remote_control.release(null_cloud, fault["id"])
    code, out, _ = await work
    remote_control.remove_fault(null_cloud, fault["id"])
    assert code == 1
    assert f"Still charged on Google: node/{ZONE}/late." in out
    assert "remains" in out
    assert bench.type("down", "--yes")[0] == 0
