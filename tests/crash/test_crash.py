"""`up` and `down` killed at their calls, and calls whose answers are lost: repeating converges."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.crash import walked
from tests.crash.conftest import KINDS, WALKED, Stage
from tpuctl.emulator.client import remote_control

MakeStage = Callable[[str], Stage]
SAMPLE = 1  # positions of each kind in the suite; `make soak` takes them all


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
            last = max((call["number"] for call in remote_control.calls(one.cloud)), default=0)
            assert one.run(work) == 0
            calls = remote_control.calls(one.cloud, last)
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
) -> list[str]:
    """Kill `up` at one change, repeat it; kill `down` at one, repeat it. What it was killed at."""
    one = stage(kind)
    killed = [one.kill_at(walked.bring_up, position, after=after, every=False)]
    assert one.run(walked.bring_up) == 0, killed
    compare(one, expected["up"], killed)
    later = position % expected["down changes"] + 1
    killed.append(one.kill_at(walked.take_down, later, after=after, every=False))
    assert one.run(walked.take_down) == 0, killed
    compare(one, expected["down"], killed)
    return killed


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_some_calls(stage: MakeStage, kind: str, undisturbed: dict[str, Any]) -> None:
    expected = reference(stage, kind, undisturbed)
    choice = random.Random(f"killed {kind}")
    killed = []
    for position in choice.sample(range(1, expected["up changes"] + 1), SAMPLE):
        killed += walk(stage, kind, expected, position, after=choice.random() < 0.5)
    assert len([one for one in killed if one]) >= SAMPLE  # not all had ended before


class Seen:
    """What killed programs left: the same content is repeated from once."""

    def __init__(self) -> None:
        self._contents: list[dict[str, Any]] = []

    def is_new(self, content: dict[str, Any]) -> bool:
        if content in self._contents:
            return False
        self._contents.append(content)
        return True


def every_call(expected: dict[str, Any], name: str, kind: str) -> list[tuple[int, bool, bool]]:
    """Position, `after` and `every`: before each call, and after each that changes something.

    Questions change nothing, neither in the cloud nor here: a program killed at one leaves what
    it had left at the change before. Of one kind they are walked through all the same.
    """
    asks_too = kind == "whole"
    count = expected[f"{name} calls" if asks_too else f"{name} changes"]
    before = [(one, False, asks_too) for one in range(1, count + 1)]
    after = [(one, True, False) for one in range(1, expected[f"{name} changes"] + 1)]
    return before + after


@pytest.mark.soak
@pytest.mark.release("every call; `make test` draws some of them")
@pytest.mark.parametrize("kind", WALKED)
def test_up_killed_at_every_call(stage: MakeStage, kind: str, undisturbed: dict[str, Any]) -> None:
    expected = reference(stage, kind, undisturbed)
    seen = Seen()
    for position, after, every in every_call(expected, "up", kind):
        one = stage(kind)
        at = one.kill_at(walked.bring_up, position, after=after, every=every)
        if at == "" or seen.is_new(held(one)):
            assert one.run(walked.bring_up) == 0, at
            compare(one, expected["up"], at)


@pytest.mark.soak
@pytest.mark.release("every call; `make test` draws some of them")
@pytest.mark.parametrize("kind", WALKED)
def test_down_killed_at_every_call(
    stage: MakeStage, kind: str, undisturbed: dict[str, Any]
) -> None:
    expected = reference(stage, kind, undisturbed)
    seen, one = Seen(), None
    for position, after, every in every_call(expected, "down", kind):
        if one is None:
            one = stage(kind)
            assert one.run(walked.bring_up) == 0
        at = one.kill_at(walked.take_down, position, after=after, every=every)
        left = held(one)
        if left == expected["up"]:
            continue  # it had only asked: the stack is there for the next
        if seen.is_new(left):
            assert one.run(walked.take_down) == 0, at
            compare(one, expected["down"], at)
        one = None


def lose(stage: MakeStage, kind: str, expected: dict[str, Any], position: int) -> None:
    """The cloud acts, and the answer is lost: of one call of `up`, and of one of `down`."""
    one = stage(kind)
    with one.fault("drop-response", method="mutating", at=position):
        one.run(walked.bring_up)
    assert one.run(walked.bring_up) == 0
    compare(one, expected["up"], position)
    with one.fault("drop-response", method="mutating", at=position % expected["down changes"] + 1):
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
@pytest.mark.release("every change; `make test` draws some of them")
@pytest.mark.parametrize("kind", WALKED)
def test_every_lost_answer(stage: MakeStage, kind: str, undisturbed: dict[str, Any]) -> None:
    expected = reference(stage, kind, undisturbed)
    for position in range(1, expected["up changes"] + 1):
        lose(stage, kind, expected, position)
