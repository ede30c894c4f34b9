"""A new service account that other services do not see yet."""

from __future__ import annotations

import pytest

from tests.support.projects import Bench, Project
from tpuctl.errors import TpuctlError
from tpuctl.local_cloud import remote_control, server_process
from tpuctl.model.events import StepProgress


async def bring_up(bench: Bench, cloud: server_process.LocalCloud, text: str) -> int:
    """Run `up` with this error of the controller's operation; return how often it occurred."""
    fields = {"method": "Instances/Insert", "project": bench.stack.project, "fail_operation": True}
    fault = remote_control.add_fault(cloud, "error", code="NOT_FOUND", text=text, **fields)
    try:
        await bench.provision()
    finally:
        used = int(remote_control.remove_fault(cloud, fault["id"])["applied"])
    return used


async def test_controller_creation_retries_until_account_is_visible(
    project: Project, null_cloud: server_process.LocalCloud
) -> None:
    bench = project.stack("kind: node")
    stack = bench.stack.stack
    text = f"The resource '{stack.service_account}' of type 'serviceAccount' was not found."
    assert await bring_up(bench, null_cloud, text) == 1
    texts = [event.text for event in bench.events if isinstance(event, StepProgress)]
    assert f"waiting for {stack.service_account} to propagate" in texts
    controllers = await bench.call("instances", "list", project=project.id, zone=stack.zone)
    assert [(controller.name, controller.status) for controller in controllers] == [
        (stack.names.controller, "RUNNING")
    ]
    assert (await bench.stack.plan()).plan.is_empty


async def test_other_controller_errors_are_not_retried(
    project: Project, null_cloud: server_process.LocalCloud
) -> None:
    bench = project.stack("kind: node")
    with pytest.raises(TpuctlError, match="'other' was not found"):
        await bring_up(bench, null_cloud, "The resource 'other' was not found.")
