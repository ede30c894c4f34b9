"""Two people at one stack: two `up` end in one stack, a `down` beside an `up` leaves nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.crash import walked
from tests.crash.conftest import KINDS, WALKED, Stage
from tests.crash.test_crash import SAMPLE, compare, reference
from tpuctl.emulator.client import remote_control

MakeStage = Callable[[str], Stage]
AGAIN = 3  # changes that may be missing: those to the record are repeated where two met
MEANWHILE = 1  # the documented exit code of a stack that was taken down meanwhile


def beside(one: Stage, position: int, other: Callable[..., None]) -> tuple[str, int, int] | None:
    """An `up` held at its change of that number while somebody else does something to its end.

    What it was held at, and the exit codes of the two; None if it ended without so many changes.
    """
    with one.fault("hold", method="mutating", at=position) as fault:
        first = one.start(walked.bring_up)
        held: list[Any] = []
        while first.is_alive() and not held:
            held = remote_control.fault(one.cloud, fault).get("held_calls") or []
            first.join(0.02)
        if not held:
            return None
        second = one.run(other)
        remote_control.release(one.cloud, fault)
        first.join(60)
    assert first.exitcode is not None
    return str(held[0]["method"]), first.exitcode, second


def up_and_up(stage: MakeStage, kind: str, expected: dict[str, Any], position: int) -> bool:
    """Whether there was such a change."""
    one = stage(kind)
    found = beside(one, position, walked.bring_up)
    if found is None:
        return False
    at, first, second = found
    assert (first, second) == (0, 0), at
    compare(one, expected["up"], at)
    return True


def up_and_down(stage: MakeStage, kind: str, expected: dict[str, Any], position: int) -> bool:
    """Whichever was first in the cloud's eyes: the whole stack is there, or nothing of it is."""
    one = stage(kind)
    found = beside(one, position, walked.take_down)
    if found is None:
        return False
    at, first, _ = found
    if first == 0:  # the other came before there was anything that could tell of it
        compare(one, expected["up"], at)
        return True
    assert first == MEANWHILE, at
    one.run(walked.take_down)
    compare(one, expected["down"], at)
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_two_begin_at_once(stage: MakeStage, kind: str, undisturbed: dict[str, Any]) -> None:
    expected = reference(stage, kind, undisturbed)
    one = stage(kind)
    both = [one.start(walked.bring_up) for _ in range(2)]
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    compare(one, expected["up"], "two at once")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("story", [up_and_up, up_and_down])
def test_beside_an_up_that_is_held_somewhere(
    stage: MakeStage, kind: str, story: Callable[..., bool], undisturbed: dict[str, Any]
) -> None:
    expected = reference(stage, kind, undisturbed)
    choice = random.Random(f"{story.__name__} {kind}")
    for position in choice.sample(range(1, expected["up changes"] - AGAIN), SAMPLE):
        assert story(stage, kind, expected, position)


@pytest.mark.soak
@pytest.mark.release("every change; `make test` draws some of them")
@pytest.mark.parametrize("kind", WALKED)
@pytest.mark.parametrize("story", [up_and_up, up_and_down])
def test_beside_an_up_that_is_held_anywhere(
    stage: MakeStage, kind: str, story: Callable[..., bool], undisturbed: dict[str, Any]
) -> None:
    expected = reference(stage, kind, undisturbed)
    positions = range(1, expected["up changes"] + 1)
    held = [story(stage, kind, expected, position) for position in positions]
    assert held.count(False) <= AGAIN
