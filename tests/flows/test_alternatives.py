"""Alternatives (`tpu.any_of`): `up` tries them in order, and a job may resume on another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.polling import async_until
from tests.support.projects import provision, use_cloud
from tests.support.recovery_jobs import inject_fault, log_of, script
from tpuctl.api import Tpuctl
from tpuctl.errors import NoCapacity
from tpuctl.flows.machines.inventory import list_resources
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import Event, Note

MakeStack = Callable[[str], Tpuctl]
WEST, EAST = "us-west4-a", "us-east5-b"
ALTERNATIVES = f"""
    - {{type: v5litepod-8, spot: true, zones: [{WEST}]}}
    - {{type: v6e-8, spot: true, zones: [{EAST}]}}
    - {{type: v5litepod-8, zones: [{WEST}]}}
"""


@pytest.fixture
def make(
    null_cloud: LocalCloud, tmp_path: Path, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> MakeStack:
    use_cloud(null_cloud, monkeypatch)

    def make(name: str, alternatives: str = ALTERNATIVES, extra: str = "") -> Tpuctl:
        path = tmp_path / "tpuctl.yaml"
        path.write_text(
            f"stack: {name}\nproject: local-project\nbucket: {{allow_egress: true}}\n{extra}"
            f"tpu:\n  any_of: {alternatives}",
            "utf-8",
        )
        return Tpuctl(path, cloud="local", emit=events.append)

    return make


async def tpus(stack: Tpuctl) -> set[tuple[str, str, str, str]]:
    items = await list_resources(stack.cloud, "local-project", stack=stack.stack.name)
    return {
        (item.kind, item.zone, item.detail, item.capacity)
        for item in items
        if item.kind_class.is_tpu
    }


async def test_alternatives_are_tried_in_order(
    make: MakeStack, cloud: LocalCloud, events: list[Event]
) -> None:
    stack = make("any")
    planned = await stack.plan()
    assert [candidate.key for candidate in planned.fallback_costs] == [
        f"spot v6e-8/{EAST}",
        f"on-demand v5litepod-8/{WEST}",
    ]
    spot, other, on_demand = (
        cost.per_hour for cost in (planned.cost, *planned.fallback_costs.values())
    )
    assert spot is not None and other is not None and on_demand is not None
    assert spot < on_demand
    for fault_type in ("v5litepod-8", "v6e-8"):
        remote_control.add_fault(cloud, "stockout", type=fault_type)
    prepared = await provision(stack)
    assert await tpus(stack) == {("node", WEST, "v5litepod-8", "on-demand")}
    assert prepared.stack.accelerator.name == "v5litepod-8"
    notes = [event.text for event in events if isinstance(event, Note)]
    assert f"Trying spot v6e-8 in {EAST}." in notes[0]
    assert notes[-1].startswith(f"Created on-demand v5litepod-8 in {WEST}, because spot v5")

    again = await stack.plan()
    assert again.plan.is_empty
    assert again.stack.file.tpu.capacity == "on-demand"
    assert not (await stack.down(delete_bucket=True)).leaks
    assert await tpus(stack) == set()


async def test_race_keeps_the_alternative_that_is_granted_first(
    make: MakeStack, cloud: LocalCloud, events: list[Event]
) -> None:
    """In a zone only one alternative of an API takes part: both would have the same names."""
    queued = f"""
    - {{type: v5litepod-8, zones: [{WEST}], queue: true, spot: true}}
    - {{type: v6e-8, zones: [{EAST}], queue: true}}
    - {{type: v5litepod-8, zones: [{WEST}], queue: true}}
"""
    stack = make("raced", queued)
    sold_out = remote_control.add_fault(cloud, "stockout", type="v5litepod-8", times="unlimited")
    planned = await stack.plan(race=True)
    assert planned.race_cost is not None
    assert planned.race_cost.zones == (f"spot v5litepod-8/{WEST}", f"on-demand v6e-8/{EAST}")
    prepared = await stack.provision(planned)
    assert (prepared.stack.accelerator.name, prepared.stack.zone) == ("v6e-8", EAST)
    assert await tpus(stack) == {
        ("queued", EAST, "v6e-8", "on-demand"),
        ("node", EAST, "v6e-8", "on-demand"),
    }
    note = next(event.text for event in events if isinstance(event, Note))
    assert note.startswith(f"on-demand v6e-8 in {EAST} was granted first")
    assert note.endswith(f"Requests deleted: spot v5litepod-8 in {WEST}.")
    assert (await stack.plan()).plan.is_empty
    remote_control.remove_fault(cloud, sold_out["id"])
    assert not (await stack.down(delete_bucket=True)).leaks
    assert await tpus(stack) == set()


async def test_nothing_is_requested_after_the_deadline(make: MakeStack) -> None:
    """A TPU that is up is kept."""
    stack = make("late", "[v5litepod-8, v6e-8]")
    await provision(stack)
    stack.stack_file.write_text(
        stack.stack_file.read_text("utf-8") + "\n  deadline: 2026-01-01T00:00:00Z\n", "utf-8"
    )
    late = Tpuctl(stack.stack_file, cloud="local")
    assert (await late.plan()).plan.is_empty
    await late.down(delete_bucket=True)
    with pytest.raises(NoCapacity, match="2026-01-01 00:00 UTC"):
        await late.plan()


async def test_request_of_another_alternative_is_deleted_first(
    make: MakeStack, cloud: LocalCloud
) -> None:
    """A failed request is still there, whose nodes have the names of the next alternative's."""
    stack = make(
        "left",
        f"""
    - {{type: v5litepod-8, zones: [{WEST}], queue: true, spot: true}}
    - {{type: v5litepod-8, zones: [{WEST}]}}
""",
    )
    text = "no more capacity"
    remote_control.add_fault(cloud, "queue-failure", code="RESOURCE_EXHAUSTED", text=text)
    denied = remote_control.add_fault(cloud, "deny", method="DeleteQueuedResource")
    await provision(stack)
    assert remote_control.fault(cloud, denied["id"])["applied"] == 1
    assert await tpus(stack) == {("node", WEST, "v5litepod-8", "on-demand")}
    assert not (await stack.down(delete_bucket=True)).leaks


TYPED = """
import os, time
print(os.environ["TPUCTL_TYPE"], os.environ["TPUCTL_CHIPS"], flush=True)
time.sleep(600 if os.environ["TPUCTL_ATTEMPT"] == "1" else 0)
"""


async def test_job_resumes_on_another_alternative(
    make_stack: Callable[..., Tpuctl], local_cloud: LocalCloud, events: list[Event]
) -> None:
    stack = make_stack(
        runtime="tpu-ubuntu2204-base, spot: true, any_of: [v2-8, v3-8]",
        extra="job: {resume: any}\n",
    )
    await stack.up()
    record = await stack.submit(script(stack, TYPED), check=False)
    following = asyncio.ensure_future(stack.follow(record))
    await async_until(lambda: "v2-8 4" in log_of(events, 1), "the first attempt")
    await asyncio.to_thread(
        remote_control.add_fault, local_cloud, "stockout", type="v2-8", times="unlimited"
    )
    await inject_fault(local_cloud, "preempt", node=stack.stack.names.node)
    assert await asyncio.wait_for(following, 120) == 0
    assert log_of(events, 2) == "v3-8 4\n"
    (summary,) = await stack.jobs()
    assert (summary.record.attempt, summary.record.accelerator) == (2, "v3-8")
    assert (await stack.plan()).plan.is_empty
    await asyncio.to_thread(remote_control.remove_all_faults, local_cloud)
    assert not (await stack.down(delete_bucket=True)).leaks
