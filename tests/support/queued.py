"""Helpers for tests of queued resources."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from tests.support.forked_cli import forked_tpuctl
from tests.support.locations import PROJECT, US_ZONE
from tpuctl.api import Tpuctl
from tpuctl.errors import NotFound
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud

T = TypeVar("T")

MakeStack = Callable[..., Tpuctl]
OTHER = "us-central1-c"
FLEX_START: dict[str, Any] = {
    "queue": "{run_for: 4h}",
    "tpu": "capacity: flex-start",
    "type_name": "v5litepod-4",
    "runtime": "v2-alpha-tpuv5-lite",
    "zone": "us-central1-a",
}


def with_queue(make_stack: MakeStack) -> MakeStack:
    """Like `make_stack`, with a queue and more options in `tpu`."""

    def make(*, queue: str = "true", tpu: str = "", **options: Any) -> Tpuctl:
        more = f", {tpu}" if tpu else ""
        options.setdefault("zone", US_ZONE)
        runtime = options.pop("runtime", "tpu-ubuntu2204-base")
        return make_stack(runtime=f"{runtime}, queue: {queue}{more}", **options)

    return make


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Run something in the background; cancel it at the end of the block."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def kill_race(stack: Tpuctl, cloud: LocalCloud, method: str, **fields: Any) -> None:
    """Start `up --race` in another process, and kill it with SIGKILL while a call of a method is
    held, which is then dropped. `fields` are those of the fault."""
    hold = remote_control.add_fault(cloud, "hold", method=method, **fields)["id"]
    process = await asyncio.create_subprocess_exec(
        *(forked_tpuctl(), "up", "--race", "--yes"),
        cwd=stack.stack_file.parent,
        stderr=asyncio.subprocess.DEVNULL,
    )
    await asyncio.to_thread(remote_control.wait_held, cloud, hold, 60)
    process.kill()
    await process.wait()
    remote_control.release(cloud, hold, drop=True)
    remote_control.remove_fault(cloud, hold)


async def call(stack: Tpuctl, method: str, request: dict[str, Any]) -> Any:
    return await stack.cloud.call(method, getattr(stack.cloud.client("tpu"), method), request)


def path(stack: Tpuctl, zone: str = "") -> str:
    location = f"projects/{PROJECT}/locations/{zone or stack.stack.zone}"
    return f"{location}/queuedResources/{stack.stack.names.queued}"


async def request_of(stack: Tpuctl, zone: str = "") -> Any:
    """The queued resource, or None if not found."""
    try:
        return await call(stack, "get_queued_resource", {"name": path(stack, zone)})
    except NotFound:
        return None


async def nodes_of(stack: Tpuctl) -> list[Any]:
    """The stack's nodes in all zones, sorted by name."""
    parent = f"projects/{PROJECT}/locations/-"
    nodes = await call(stack, "list_nodes", {"parent": parent})
    own_nodes = [node for node in nodes if node.labels.get("tpuctl-stack") == stack.stack.name]
    return sorted(own_nodes, key=lambda node: str(node.name))
