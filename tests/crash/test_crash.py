"""`up` and `down` killed at their calls, and calls whose answers are lost: repeating converges."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import walked
from conftest import KINDS, Stage

from tpuctl.emulator import steering

MakeStage = Callable[[str], Stage]
SAMPLE = 2  # positions of each kind in the suite; `make soak` takes them all


def held(stage: Stage) -> dict[str, Any]:
    return walked.content(stage.cloud.url, stage.cloud.token, stage.project, stage.stack)


def compare(stage: Stage, expected: dict[str, Any], when: Any) -> None:
    differences = walked.differences(held(stage), expected)
    assert not differences, (when, "\n".join(differences))


def reference(stage: MakeStage, kind: str, undisturbed: dict[str, Any]) -> dict[str, Any]:
    if kind not in undisturbed:
        one = stage(kind)
        found: dict[str, Any] = {}
        for name, work in (("up", walked.bring_up), ("down", walked.take_down)):
            before = len(steering.calls(one.cloud))
            assert one.run(work) == 0
            calls = steering.calls(one.cloud)[before:]
            found[name] = held(one)
            found[f"{name} calls"] = len(calls)
            found[f"{name} changes"] = sum(call["mutating"] for call in calls)
        undisturbed[kind] = found
    return undisturbed[kind]  # type: ignore[no-any-return]


def walk(
    stage: MakeStage,
    kind: str,
    expected: dict[str, Any],
    position: int,
    *,
    after: bool,
    every: bool,
) -> list[str]:
    """Kill `up` at one call, repeat it; kill `down` at one, repeat it. What it was killed at."""
    one = stage(kind)
    killed = [one.kill_at(walked.bring_up, position, after=after, every=every)]
    assert one.run(walked.bring_up) == 0, killed
    compare(one, expected["up"], killed)
    what = "calls" if every else "changes"
    later = position % expected[f"down {what}"] + 1
    killed.append(one.kill_at(walked.take_down, later, after=after, every=every))
    assert one.run(walked.take_down) == 0, killed
    compare(one, expected["down"], killed)
    return killed


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_some_calls(stage: MakeStage, kind: str, undisturbed: dict[str, Any]) -> None:
    expected = reference(stage, kind, undisturbed)
    choice = random.Random(f"killed {kind}")
    killed = []
    for position in choice.sample(range(1, expected["up changes"] + 1), SAMPLE):
        killed += walk(stage, kind, expected, position, after=choice.random() < 0.5, every=False)
    assert len([one for one in killed if one]) >= SAMPLE  # not all had ended before


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_killed_before_every_call(stage: MakeStage, kind: str, undisturbed: dict[str, Any]) -> None:
    expected = reference(stage, kind, undisturbed)
    for position in range(1, expected["up calls"] + 1):
        walk(stage, kind, expected, position, after=False, every=True)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_killed_after_every_change(
    stage: MakeStage, kind: str, undisturbed: dict[str, Any]
) -> None:
    """A call that only asks leaves nothing behind: being killed after it is as before the next."""
    expected = reference(stage, kind, undisturbed)
    for position in range(1, expected["up changes"] + 1):
        walk(stage, kind, expected, position, after=True, every=False)


def lose(stage: MakeStage, kind: str, expected: dict[str, Any], position: int) -> None:
    """The cloud acts, and the answer is lost: of one call of `up`, and of one of `down`."""
    one = stage(kind)
    with one.fault("lost", method="mutating", at=position):
        one.run(walked.bring_up)
    assert one.run(walked.bring_up) == 0
    compare(one, expected["up"], position)
    with one.fault("lost", method="mutating", at=position % expected["down changes"] + 1):
        one.run(walked.take_down)
    assert one.run(walked.take_down) == 0
    compare(one, expected["down"], position)


@pytest.mark.parametrize("kind", KINDS)
def test_some_lost_answers(stage: MakeStage, kind: str, undisturbed: dict[str, Any]) -> None:
    expected = reference(stage, kind, undisturbed)
    choice = random.Random(f"lost {kind}")
    for position in choice.sample(range(1, expected["up changes"] + 1), SAMPLE):
        lose(stage, kind, expected, position)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_every_lost_answer(stage: MakeStage, kind: str, undisturbed: dict[str, Any]) -> None:
    expected = reference(stage, kind, undisturbed)
    for position in range(1, expected["up changes"] + 1):
        lose(stage, kind, expected, position)
