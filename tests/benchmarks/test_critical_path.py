"""The minimum duration of a plan is the sum along the longest path of its graph."""

from __future__ import annotations

import pytest

from tests.benchmarks.critical_path import STEPS, VISIBLE, critical_path
from tpuctl.emulator.server import PACES
from tpuctl.local_cloud.pace import Pace
from tpuctl.model.plan import Action, Change, Plan

REAL = Pace("real", PACES)


def plan(*changes: tuple[str, Action, tuple[str, ...]]) -> Plan:
    """Changes in a legal order: address, action, dependencies."""
    return Plan(
        tuple(Change(address, action, "") for address, action, _ in changes),
        {address: frozenset(after) for address, _, after in changes},
    )


def test_critical_path_is_longest_chain() -> None:
    path = critical_path(
        plan(
            ("apis/needed", Action.UPDATE, ()),
            ("disk/data", Action.CREATE, ("apis/needed",)),
            ("firewall/ssh", Action.CREATE, ("apis/needed",)),
            ("node/n", Action.CREATE, ("disk/data",)),
        ),
        REAL,
    )
    assert [address for address, _ in path.steps] == ["apis/needed", "disk/data", "node/n"]
    expected = ("services.enable", "compute.disks", "tpu.nodes.create")
    assert path.seconds == sum(REAL.seconds(step) for step in expected)


def test_existing_resources_take_no_time() -> None:
    path = critical_path(
        plan(
            ("apis/needed", Action.NOTHING, ()),
            ("node/n", Action.CREATE, ("apis/needed",)),
        ),
        REAL,
    )
    assert path.steps == (("node/n", REAL.seconds("tpu.nodes.create")),)


@pytest.mark.parametrize("action", [Action.CREATE, Action.NOTHING])
def test_grant_waits_for_new_role(action: Action) -> None:
    path = critical_path(
        plan(
            ("role/watch", action, ()),
            ("project-grants/p", Action.UPDATE, ("role/watch",)),
            ("node/n", Action.CREATE, ("project-grants/p",)),
        ),
        REAL,
    )
    waited = REAL.seconds("identity.roles.visible") if action is Action.CREATE else 0
    assert path.seconds == waited + REAL.seconds("tpu.nodes.create")


def test_measured_durations_replace_estimates() -> None:
    steps = plan(("tpu/n", Action.CREATE, ()))
    assert critical_path(steps, REAL, {"tpu/n": 1000.0}).seconds == 1000.0
    assert critical_path(steps, REAL, {"tpu/n": 1.0}).seconds == REAL.seconds("tpu.v1.create")


def test_every_step_has_a_pace() -> None:
    for step in {*VISIBLE.values(), *(step for steps in STEPS.values() for step in steps)}:
        assert REAL.seconds(step) > 0
