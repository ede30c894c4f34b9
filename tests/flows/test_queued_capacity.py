"""Kinds of capacity that a queued resource asks for: reserved, guaranteed, flex-start."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.places import PROJECT, US_ZONE
from tests.support.queued import FLEX_START, nodes_of, path, request_of, with_queue
from tpuctl.api import Tpuctl
from tpuctl.emulator.client import remote_control, server_process
from tpuctl.errors import NoCapacity, TpuctlError

MakeStack = Callable[..., Tpuctl]


@pytest.fixture
def make_queued(make_stack: MakeStack) -> MakeStack:
    return with_queue(make_stack)


async def test_reserved_capacity_is_drawn_from_the_reservation_named(
    make_queued: MakeStack, local_cloud: server_process.LocalCloud
) -> None:
    reservation = f"projects/{PROJECT}/locations/{US_ZONE}/reservations/ours"
    stack = make_queued(queue="{reservation: ours}", tpu="capacity: reserved")
    with pytest.raises(NoCapacity, match=r"[Rr]eservation"):
        await stack.up()
    assert await request_of(stack) is None
    remote_control.change_settings(local_cloud, reservations={reservation: True})
    try:
        await stack.up()
        assert (await request_of(stack)).reservation_name == reservation
        unnamed = make_queued(tpu="capacity: reserved")
        await unnamed.up()
        assert (await request_of(unnamed)).reservation_name.endswith("/reservations/-")
        assert [node.scheduling_config.reserved for node in await nodes_of(unnamed)] == [True]
        await unnamed.down(delete_bucket=True)
    finally:
        remote_control.change_settings(local_cloud, reservations={reservation: False})
    await stack.down(delete_bucket=True)


async def test_capacity_can_be_asked_for_that_is_not_taken_away(make_queued: MakeStack) -> None:
    stack = make_queued(queue="{guaranteed: true}")
    await stack.up()
    request = await request_of(stack)
    assert "guaranteed" in request
    assert "spot" not in request
    await stack.down(delete_bucket=True)


async def test_flex_start_gives_nodes_for_the_time_asked_for(make_queued: MakeStack) -> None:
    stack = make_queued(**FLEX_START)
    await stack.up()
    rest = stack.cloud.client("rest")
    request = await stack.cloud.call("it", rest.call, "GET", "tpu", f"/v2alpha1/{path(stack)}")
    assert request["provisioningModel"] == "FLEX_START"
    assert request["runDuration"]["maxRunDuration"] == "14400s"
    assert request["state"]["state"] == "ACTIVE"
    assert (await stack.plan()).plan.is_empty
    assert (await stack.down(delete_bucket=True)).leaks == ()
    assert await request_of(stack) is None


async def test_flex_start_of_several_nodes(make_queued: MakeStack) -> None:
    stack = make_queued(**(FLEX_START | {"queue": "{run_for: 1d, nodes: 2}"}))
    await stack.up()
    assert [node.state.name for node in await nodes_of(stack)] == ["READY", "READY"]
    await stack.down(delete_bucket=True)


async def test_what_is_refused_after_it_was_taken_is_told(make_queued: MakeStack) -> None:
    stack = make_queued(**(FLEX_START | {"zone": "europe-west4-b"}))
    with pytest.raises(TpuctlError, match="FLEX_START provisioning model is not supported"):
        await stack.up()
    assert await request_of(stack) is None
    await stack.down(delete_bucket=True)
