"""A resource that another program is creating is adopted, or created if that fails."""

from __future__ import annotations

import pytest

from tests.support.fake_clock import FakeClock
from tpuctl.cloud.classification import AlreadyExists
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.endpoints import Endpoint
from tpuctl.errors import Conflict
from tpuctl.resources.base import StackResource


class Rule(StackResource):
    """A resource whose creation attempts meet these `refusals`, one each."""

    kind = "firewall"
    name = "x-ssh"

    def __init__(self, *refusals: Conflict, visible_after: int | None = None) -> None:
        self.refusals = list(refusals)
        self.visible_after = visible_after
        self.looks = 0
        self.clock = FakeClock()
        self.cloud = Cloud(Endpoint("local", "http://127.0.0.1:9", "t"), "p", self.clock)
        self.reports: list[str] = []

    async def create_once(self) -> None:
        if self.refusals:
            raise self.refusals.pop(0)

    async def look(self) -> str | None:
        self.looks += 1
        is_visible = self.visible_after is not None and self.looks > self.visible_after
        return "another's" if is_visible else None

    async def result(self) -> str | None:
        return await self.create_or_adopt(
            self.create_once,
            self.look,
            lambda text, fraction: self.reports.append(text),
            seconds=60.0,
        )


TAKEN = AlreadyExists("Name is taken", "firewall/x-ssh")


async def test_existing_resource_is_adopted() -> None:
    rule = Rule(*[TAKEN] * 9, visible_after=3)
    assert await rule.result() == "another's"
    assert rule.reports == ["waiting for another program that is creating it"] * 3
    rule = Rule(TAKEN, TAKEN)
    assert await rule.result() is None
    assert rule.looks == 2


async def test_conflict_is_raised_at_deadline_and_others_immediately() -> None:
    rule = Rule(*[TAKEN] * 100)
    with pytest.raises(AlreadyExists, match="firewall/x-ssh"):
        await rule.result()
    assert rule.clock.time == pytest.approx(60.0)
    rule = Rule(Conflict("Conflict", "an organization policy forbids it"))
    with pytest.raises(Conflict, match="forbids"):
        await rule.result()
    assert rule.clock.time == 0.0
    assert await Rule(Conflict("Conflict", "busy"), visible_after=0).result() == "another's"
