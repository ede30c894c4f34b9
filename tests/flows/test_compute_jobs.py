"""Jobs on TPUs that Compute Engine sells: one instance, or a managed instance group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from tests.support.recovery_jobs import script
from tpuctl.api import Tpuctl
from tpuctl.emulator.client.server_process import LocalCloud
from tpuctl.model.events import CommandOutput, Event

MakeStack = Callable[..., Tpuctl]
ZONE = "us-east5-b"
ENVIRONMENT = """
import json, os
names = ("TPUCTL_", "TPU_")
print(json.dumps({name: os.environ[name] for name in os.environ if name.startswith(names)}))
raise SystemExit(3)
"""


@pytest.fixture
async def instance(make_stack: MakeStack) -> AsyncIterator[Tpuctl]:
    stack = make_stack(type_name="v6e-4", runtime="auto, api: compute", zone=ZONE)
    await stack.up()
    yield stack
    assert (await stack.down(delete_bucket=True)).leaks == ()


async def test_job_on_instance_returns_its_exit_code(instance: Tpuctl, events: list[Event]) -> None:
    record = await instance.submit(script(instance, ENVIRONMENT), check=False)
    assert await instance.follow(record) == 3
    log = (await instance.store.get_bytes(record.log_name(0))).decode()
    print(log)
    (result,) = await instance.run_on_workers("echo from $HOSTNAME")
    print(result, [event for event in events if isinstance(event, CommandOutput)])
    assert (await instance.up()).plan.is_empty
