"""Capacity of queued resources: reserved, guaranteed, flex-start."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.locations import PROJECT, US_ZONE
from tests.support.projects import provision
from tests.support.queued import FLEX_START, nodes_of, path, request_of, with_queue
from tpuctl.api import Tpuctl
from tpuctl.errors import NoCapacity, TpuctlError
from tpuctl.local_cloud import remote_control, server_process

MakeStack = Callable[..., Tpuctl]


@pytest.fixture
def make_queued(make_stub_stack: MakeStack) -> MakeStack:
    return with_queue(make_stub_stack)


async def test_reserved_capacity_uses_named_reservation(
    make_queued: MakeStack, null_cloud: server_process.LocalCloud
) -> None:
    reservation = f"projects/{PROJECT}/locations/{US_ZONE}/reservations/ours"
    stack = make_queued(queue="{reservation: ours}", tpu="capacity: reserved")
    with pytest.raises(NoCapacity, match=r"[Rr]eservation"):
        await provision(stack)
    assert await request_of(stack) is None
    remote_control.change_settings(null_cloud, reservations={reservation: True})
    try:
        await provision(stack)
        assert (await request_of(stack)).reservation_name == reservation
        unnamed = make_queued(tpu="capacity: reserved")
        await provision(unnamed)
        assert (await request_of(unnamed)).reservation_name.endswith("/reservations/-")
        assert [node.scheduling_config.reserved for node in await nodes_of(unnamed)] == [True]
        await unnamed.down(delete_bucket=True)
    finally:
        remote_control.change_settings(null_cloud, reservations={reservation: False})
    await stack.down(delete_bucket=True)


async def test_guaranteed_capacity(make_queued: MakeStack) -> None:
    stack = make_queued(queue="{guaranteed: true}")
    await provision(stack)
    request = await request_of(stack)
    assert "guaranteed" in request
    assert "spot" not in request
    await stack.down(delete_bucket=True)


async def test_flex_start_run_duration(make_queued: MakeStack) -> None:
    stack = make_queued(**FLEX_START)
    await provision(stack)
    rest = stack.cloud.client("rest")
    request = await stack.cloud.call("it", rest.call, "GET", "tpu", f"/v2alpha1/{path(stack)}")
    assert request["provisioningModel"] == "FLEX_START"
    assert request["runDuration"]["maxRunDuration"] == "14400s"
    assert request["state"]["state"] == "ACTIVE"
    assert (await stack.plan()).plan.is_empty
    assert (await stack.down(delete_bucket=True)).leaks == ()
    assert await request_of(stack) is None


async def test_flex_start_with_several_nodes(make_queued: MakeStack) -> None:
    stack = make_queued(**(FLEX_START | {"queue": "{run_for: 1d, nodes: 2}"}))
    await provision(stack)
    assert [node.state.name for node in await nodes_of(stack)] == ["READY", "READY"]
    await stack.down(delete_bucket=True)


async def test_request_rejected_after_acceptance_is_reported(make_queued: MakeStack) -> None:
    stack = make_queued(**(FLEX_START | {"zone": "europe-west4-b"}))
    with pytest.raises(TpuctlError, match="FLEX_START provisioning model is not supported"):
        await provision(stack)
    assert await request_of(stack) is None
    await stack.down(delete_bucket=True)
