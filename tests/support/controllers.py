"""What runs on a stack's controller, over SSH."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tpuctl.api import Tpuctl
from tpuctl.flows.machines.workers import controller_transport
from tpuctl.remote.keys import config_home
from tpuctl.remote.transport import Transport


@asynccontextmanager
async def on_controller(stack: Tpuctl) -> AsyncIterator[Transport]:
    transport = await controller_transport(
        stack.stack,
        stack.cloud,
        key=stack.key.path,
        known_hosts=config_home() / "known_hosts",
        emit=stack.emit,
    )
    try:
        yield transport
    finally:
        await transport.close()


async def read_work(stack: Tpuctl, folder: str, name: str = "state.json") -> Any:
    """A file of what the controller works on, such as a job or the queue; None if missing."""
    async with on_controller(stack) as transport:
        read = await transport.run(["cat", f".tpuctl/recover/{folder}/{name}"])
    return json.loads(read.stdout) if read.exit_code == 0 else None
