"""Preemption and maintenance notices, as programs on a real machine receive them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.support.polling import async_until
from tests.support.queued import request_of, with_queue
from tpuctl.api import Tpuctl
from tpuctl.errors import Unreachable
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud

MakeStack = Callable[..., Tpuctl]
# Prints each value of a metadata key, and receiving SIGTERM.
LISTENER = """
import os, signal, sys, time, urllib.request

def say(text):
    os.write(1, text.encode() + b"\\n")

def end(*_):
    say("signal")
    time.sleep(2)  # the machine stops when the last program exits
    sys.exit()

signal.signal(signal.SIGHUP, signal.SIG_IGN)  # also sent to login sessions
signal.signal(signal.SIGTERM, end)
url = f"http://{os.environ['GCE_METADATA_HOST']}/computeMetadata/v1/instance/{sys.argv[1]}"
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
etag = "0"
while True:
    request = urllib.request.Request(f"{url}?wait_for_change=true&last_etag={etag}")
    request.add_header("Metadata-Flavor", "Google")
    with opener.open(request, timeout=60) as answer:
        etag = answer.headers["ETag"]
        say(answer.read().decode())
"""


class NoticeListener:
    """The lines that a listener on worker 0 has printed so far."""

    def __init__(self, stack: Tpuctl, key: str) -> None:
        self.lines: list[str] = []
        self._task = asyncio.ensure_future(self._listen(stack, key))

    async def _listen(self, stack: Tpuctl, key: str) -> None:
        worker = (await stack.transports())[0]
        text = ""
        try:
            async with worker.stream(["python3", "-c", LISTENER, key]) as stream:
                async for piece in stream.chunks():
                    text += piece.decode()
                    self.lines = text.splitlines()
        except Unreachable:
            pass  # the machine was stopped
        finally:
            await worker.close()

    async def wait_for_lines(self, *lines: str) -> None:
        def has_lines() -> bool:
            assert self.lines == list(lines)[: len(self.lines)]
            return self.lines == list(lines)

        await async_until(has_lines, f"the lines {lines}")

    async def wait_for_exit(self) -> None:
        await asyncio.wait_for(self._task, 30)


async def inject_fault(cloud: LocalCloud, kind: str, node: str) -> str:
    """Set pace `quick`, so that notices last three seconds, and add the fault."""
    await asyncio.to_thread(remote_control.change_settings, cloud, pace="quick")
    fault = await asyncio.to_thread(remote_control.add_fault, cloud, kind, node=node)
    return str(fault["id"])


async def node_states(stack: Tpuctl, node: str, *, api: str = "v2") -> dict[str, Any]:
    url = f"{stack.endpoint.url}/t/{stack.endpoint.token}/{api}/projects/local-project"
    answer = await asyncio.to_thread(_get, f"{url}/locations/{stack.stack.zone}/nodes/{node}")
    return dict(answer)


def _get(url: str) -> Any:
    import requests

    with requests.Session() as session:
        session.trust_env = False
        return session.get(url, timeout=60).json()


async def test_preemption_notice_of_queued_node(
    make_stack: MakeStack, reset_cloud: LocalCloud
) -> None:
    stack = with_queue(make_stack)(tpu="capacity: spot")
    await stack.up()
    node = stack.stack.names.node
    listener = NoticeListener(stack, "preempted")
    await listener.wait_for_lines("FALSE")
    fault = await inject_fault(reset_cloud, "preempt", node)
    await listener.wait_for_lines("FALSE", "TRUE")
    assert (await node_states(stack, node))["state"] == "READY"  # while the notice lasts
    await listener.wait_for_lines("FALSE", "TRUE", "signal")
    await listener.wait_for_exit()
    async with asyncio.timeout(30):
        while (await node_states(stack, node))["state"] != "PREEMPTED":
            await asyncio.sleep(0.05)
        while (await request_of(stack)).state.state.name != "SUSPENDED":
            await asyncio.sleep(0.05)
    await asyncio.to_thread(remote_control.change_settings, reset_cloud, pace="instant")
    fault_state = await asyncio.to_thread(remote_control.fault, reset_cloud, fault)
    assert (fault_state["applied"], fault_state["error"]) == (1, "")
    assert (await stack.down(delete_bucket=True)).leaks == ()


async def test_maintenance_notice_of_node(make_stack: MakeStack, reset_cloud: LocalCloud) -> None:
    stack = make_stack()
    await stack.up()
    node = stack.stack.names.node
    assert "upcomingMaintenance" not in await node_states(stack, node, api="v2alpha1")
    listener = NoticeListener(stack, "maintenance-event")
    await listener.wait_for_lines("NONE")
    await inject_fault(reset_cloud, "maintenance", node)
    await listener.wait_for_lines("NONE", "TERMINATE_ON_HOST_MAINTENANCE")
    status = await node_states(stack, node, api="v2alpha1")
    assert (status["state"], status["health"]) == ("READY", "UNHEALTHY_MAINTENANCE")
    maintenance = status["upcomingMaintenance"]
    assert (maintenance["type"], maintenance["maintenanceStatus"]) == ("UNSCHEDULED", "ONGOING")
    assert maintenance["windowStartTime"] <= maintenance["windowEndTime"]
    await listener.wait_for_lines("NONE", "TERMINATE_ON_HOST_MAINTENANCE", "NONE")
    async with asyncio.timeout(30):
        while (await node_states(stack, node))["health"] != "HEALTHY":
            await asyncio.sleep(0.05)
    assert "upcomingMaintenance" not in await node_states(stack, node, api="v2alpha1")
    await asyncio.to_thread(remote_control.change_settings, reset_cloud, pace="instant")
    assert (await stack.down(delete_bucket=True)).leaks == ()
    await listener.wait_for_exit()
