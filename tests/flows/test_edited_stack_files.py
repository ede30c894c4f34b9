"""A stack file edited after `up` to something that cannot be created.

Commands that create resources reject it; commands that inspect and delete work, since machines cost
money.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.projects import Project
from tests.support.stack_jobs import displayed_log
from tpuctl.api import Tpuctl
from tpuctl.errors import Conflict, InvalidStack
from tpuctl.flows.machines.forward import PortMapping
from tpuctl.model.events import CommandOutput, Event, StepStarted
from tpuctl.model.stack.stack import read_stack
from tpuctl.model.workers.copy_path import parse_copy

TYPE = "type: v3-8"
ZONES = "zones: [europe-west4-a]"
EDITS = {
    "a zone of another region": (ZONES, "zones: [europe-west4-a, us-central1-a]"),
    "a zone without the type": (ZONES, "zones: [europe-west4-a, us-west4-a]"),
    "no such zone": (ZONES, "zones: [nowhere-1-a]"),
    "no such type": (TYPE, "type: v3-9"),
    "a type outside the API": (TYPE, "type: tpu7x-8"),
    "no such runtime": (TYPE, f"{TYPE}, runtime: none such"),
    "another topology": (TYPE, f"{TYPE}, topology: 9x9"),
    "no startup script": (TYPE, f"{TYPE}, startup_script: nonesuch.sh"),
    "a disk without a size": (TYPE, f"{TYPE}, data_disks: [{{mode: read-only}}]"),
    "flex-start without a queue": (TYPE, f"{TYPE}, capacity: flex-start"),
    "options of another kind": (TYPE, f"{TYPE}, kind: node, queue: true, topology: 2x2"),
    "no such machine type": ("tpu:", "controller: {machine_type: n9-standard-1}\ntpu:"),
    "address ranges that are none": ("tpu:", "network: {allow_from: [here]}\ntpu:"),
    "a range of a TPU VM": ("tpu:", "network: {node_range: 10.1.2.0/29}\ntpu:"),
    "a bucket in another region": ("tpu:", "bucket: {location: us-east1}\ntpu:"),
    "a worker too many": ("tpu:", "job: {workers: [7]}\ntpu:"),
    "a variable twice": ("tpu:", "job: {env: {A: b}, secrets: {A: env}}\ntpu:"),
    "our own label": ("tpu:", "labels: {tpuctl-stack: other}\ntpu:"),
}


async def test_uncreatable_stack_can_be_inspected_and_deleted(project: Project) -> None:
    bench = project.stack()
    await bench.provision()
    file = bench.stack.stack_file
    whole = file.read_text("utf-8")
    node = bench.stack.stack.names.node
    for edit, (text, replacement) in EDITS.items():
        assert text in whole
        file.write_text(whole.replace(text, replacement), "utf-8")
        edited = bench.reopen()
        with pytest.raises(InvalidStack):
            await edited.plan()
        with pytest.raises(InvalidStack):
            edited.submission(file)
        assert [node_status.name for node_status in (await edited.status()).nodes] == [node], edit
        assert f"node/europe-west4-a/{node}" in [
            resource.address for resource in await edited.orphans()
        ], edit

    # The commands that a user would run, with an unusable file.
    worst = whole
    for text, replacement in (EDITS["no such type"], EDITS["no such zone"], EDITS["our own label"]):
        worst = worst.replace(text, replacement)
    file.write_text(worst, "utf-8")
    for command in ("plan", "up", "check"):
        code, _, errors = bench.type(command)
        assert (code, "v3-9" in errors) == (2, True), errors
    assert bench.type("status")[0] == 0
    assert bench.type("orphans")[0] == 0
    assert bench.type("jobs")[0] == 0
    code, out, errors = bench.type("down", "--yes", "--delete-bucket")
    assert (code, "No billable resources are left" in out) == (0, True), errors
    assert await bench.reopen().orphans() == []


def test_unreadable_file_error_names_alternative(project: Project) -> None:
    bench = project.stack()
    bench.stack.stack_file.write_text("stack: [\n", "utf-8")
    for command in ("down", "status"):
        code, _, errors = bench.type(command)
        assert (code, "--stack NAME --project PROJECT" in errors) == (2, True), errors


async def test_jobs_and_machines_are_reachable(
    make_stack: Callable[..., Tpuctl], events: list[Event], tmp_path: Path
) -> None:
    stack = make_stack()
    await stack.up()
    script = tmp_path / "job" / "job.py"
    script.parent.mkdir()
    script.write_text("print('it ran')\n", "utf-8")
    assert await stack.run(script) == 0

    file = stack.stack_file
    edited = file.read_text("utf-8").replace("[us-central1-b]", "[us-central1-b, europe-west4-a]")
    file.write_text(edited, "utf-8")
    assert read_stack(file).problems
    again = Tpuctl(file, cloud="local", emit=events.append)
    with pytest.raises(InvalidStack):
        again.submission(script)
    events.clear()
    record = await again.job()
    assert [job.record.id for job in await again.jobs()] == [record.id]
    await again.log(record)
    assert await again.follow(record) == 0
    assert "it ran" in displayed_log(events)
    assert (await again.stop(record)).state == "succeeded"
    assert (await again.explain(record)).record.id == record.id
    assert (await again.report(record)).attempts
    assert (await again.ssh_command(0))[0] == "ssh"
    assert [result.exit_code for result in await again.run_on_workers("echo reached")] == [0]
    assert any(isinstance(event, CommandOutput) and event.data == b"reached\n" for event in events)
    await again.copy(parse_copy([str(script), "0:"], all_workers=False))
    async with again.forward_ports([PortMapping(22)]):
        pass
    assert (await again.down(delete_bucket=True)).leaks == ()


async def test_run_refuses_tpu_of_another_type(
    make_stub_stack: Callable[..., Tpuctl], events: list[Event], tmp_path: Path
) -> None:
    """Edited after `up`: nothing is uploaded, and the message names both types."""
    stack = make_stub_stack(type_name="v2-8")
    await stack.provision(await stack.plan())
    script = tmp_path / "job" / "job.py"
    script.parent.mkdir()
    script.write_text("print('it ran')\n", "utf-8")
    file = stack.stack_file
    file.write_text(file.read_text("utf-8").replace("v2-8", "v3-8"), "utf-8")
    edited = Tpuctl(file, cloud="local", emit=events.append)
    with pytest.raises(Conflict) as caught:
        await edited.run(script)
    (diagnostic,) = caught.value.diagnostics
    assert (
        f"node {stack.stack.names.node} is v2-8; the stack file now has v3-8" in diagnostic.detail
    )
    commands = [line.strip() for line in diagnostic.hint.splitlines() if "tpuctl" in line]
    assert commands == ["tpuctl down", "tpuctl up"], "`up` does not replace a node"
    assert await edited.jobs() == []
    assert not any(isinstance(event, StepStarted) and "bundle" in event.address for event in events)
