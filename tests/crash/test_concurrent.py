"""Concurrent commands on a stack: two `up` create one stack, `down` during `up` leaves nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.crash import killable_programs
from tests.crash.conftest import KINDS, Stage
from tests.crash.test_crash import SAMPLE, Change, compare, distinct_changes, reference
from tpuctl.local_cloud import remote_control

MakeStage = Callable[[str], Stage]
# Changes that may be missing: concurrent commands repeat writes of the record.
MAX_REPEATED_CHANGES = 3
COMMANDS = (killable_programs.bring_up, killable_programs.take_down)
EXIT_DELETED = 1  # documented exit code of `up` if the stack is deleted while it runs


def run_during_up(
    stage: Stage, change: Change, other: Callable[..., None]
) -> tuple[str, int, int] | None:
    """Hold an `up` at a change while another command runs to completion.

    Returns the method it was held at, and both exit codes; None if it makes fewer changes.
    """
    method, at = change
    with stage.fault("hold", method=method, at=at) as fault:
        first = stage.start(killable_programs.bring_up)
        waiting: list[Any] = []
        while first.is_alive() and not waiting:
            waiting = remote_control.fault(stage.cloud, fault).get("held_calls") or []
            first.join(0.05)
        if not waiting:
            return None
        second = stage.run(other)
        remote_control.release(stage.cloud, fault)
        first.join(180)
    assert first.exitcode is not None
    return str(waiting[0]["method"]), first.exitcode, second


def converges(
    make_stage: MakeStage,
    kind: str,
    command: Callable[..., None],
    expected: dict[str, Any],
    change: Change,
) -> bool:
    """Run `up` or `down` during a change of `up`; return whether that change was reached.

    Two `up` end with the whole stack. With `down`, either the whole stack exists or nothing,
    depending on which command was first.
    """
    stage = make_stage(kind)
    outcome = run_during_up(stage, change, command)
    if outcome is None:
        return False
    at, first, second = outcome
    if command is killable_programs.bring_up:
        assert (first, second) == (0, 0), at
    if first == 0:  # `down` ran before anything existed
        compare(stage, expected["up"], at)
    else:
        assert first == EXIT_DELETED, at
        stage.run(killable_programs.take_down)
        compare(stage, expected["down"], at)
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_two_simultaneous_ups_converge(
    make_stage: MakeStage, kind: str, undisturbed: dict[str, Any]
) -> None:
    expected = reference(make_stage, kind, undisturbed)
    stage = make_stage(kind)
    both = [stage.start(killable_programs.bring_up) for _ in range(2)]
    for process in both:
        process.join(180)
    assert [process.exitcode for process in both] == [0, 0]
    compare(stage, expected["up"], "two at once")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", COMMANDS)
def test_command_during_some_changes_of_up_converges(
    make_stage: MakeStage, kind: str, command: Callable[..., None], undisturbed: dict[str, Any]
) -> None:
    expected = reference(make_stage, kind, undisturbed)
    choice = random.Random(f"{command.__name__} {kind}")
    positions = range(1, len(expected["up changes"]) - MAX_REPEATED_CHANGES)
    for position in choice.sample(positions, SAMPLE):
        assert converges(make_stage, kind, command, expected, ("mutating", position))


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", COMMANDS)
def test_command_during_every_change_of_up_converges(
    make_stage: MakeStage, kind: str, command: Callable[..., None], undisturbed: dict[str, Any]
) -> None:
    expected = reference(make_stage, kind, undisturbed)
    changes = distinct_changes(make_stage, kind, undisturbed, "up")
    assert changes
    outcomes = [converges(make_stage, kind, command, expected, change) for change in changes]
    assert outcomes.count(False) <= min(MAX_REPEATED_CHANGES, len(changes) - 1)
