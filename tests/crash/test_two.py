"""Two people at one stack: two `up` end in one stack, a `down` beside an `up` leaves nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import walked
from conftest import KINDS, Stage
from test_crash import SAMPLE, compare, reference

from tpuctl.emulator import steering

MakeStage = Callable[[str], Stage]
MEANWHILE = 1  # the documented exit code of a stack that was taken down meanwhile


def beside(one: Stage, position: int, other: Callable[..., None]) -> tuple[str, int, int]:
    """An `up` held at its change of that number while somebody else does something to its end.

    What it was held at, and the exit codes of the two.
    """
    with one.fault("hold", method="mutating", at=position) as fault:
        first = one.start(walked.bring_up)
        held: list[Any] = []
        while first.is_alive() and not held:
            held = steering.fault(one.cloud, fault).get("waiting") or []
            first.join(0.02)
        second = one.run(other)
        steering.release(one.cloud, fault)
        first.join(60)
    assert first.exitcode is not None
    return (str(held[0]["method"]) if held else "", first.exitcode, second)


def up_and_up(stage: MakeStage, kind: str, expected: dict[str, Any], position: int) -> None:
    one = stage(kind)
    at, first, second = beside(one, position, walked.bring_up)
    assert (first, second) == (0, 0), at
    compare(one, expected["up"], at)


def up_and_down(stage: MakeStage, kind: str, expected: dict[str, Any], position: int) -> None:
    """Whichever was first in the cloud's eyes: the whole stack is there, or nothing of it is."""
    one = stage(kind)
    at, first, _ = beside(one, position, walked.take_down)
    if first == 0:  # the other came before there was anything that could tell of it
        compare(one, expected["up"], at)
        return
    assert first == MEANWHILE, at
    one.run(walked.take_down)
    compare(one, expected["down"], at)


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
    stage: MakeStage, kind: str, story: Callable[..., None], undisturbed: dict[str, Any]
) -> None:
    expected = reference(stage, kind, undisturbed)
    choice = random.Random(f"{story.__name__} {kind}")
    for position in choice.sample(range(1, expected["up changes"] + 1), SAMPLE):
        story(stage, kind, expected, position)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("story", [up_and_up, up_and_down])
def test_beside_an_up_that_is_held_anywhere(
    stage: MakeStage, kind: str, story: Callable[..., None], undisturbed: dict[str, Any]
) -> None:
    expected = reference(stage, kind, undisturbed)
    for position in range(1, expected["up changes"] + 1):
        story(stage, kind, expected, position)
