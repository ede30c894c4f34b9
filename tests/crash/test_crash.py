"""`up` and `down` converge when repeated after a kill or a lost response."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.crash import killable_programs
from tests.crash.conftest import KINDS, Stage
from tpuctl.local_cloud import remote_control

pytestmark = pytest.mark.long

MakeStage = Callable[[str], Stage]
Change = tuple[str, int]  # a method, or "mutating" for any change, and which of its calls
SAMPLE = 1  # positions per kind of stack; `make soak` tests all of them


def contents(stage: Stage) -> dict[str, Any]:
    return killable_programs.content(stage.cloud.url, stage.cloud.token, stage.project, stage.stack)


def compare(stage: Stage, expected: dict[str, Any], when: Any) -> None:
    differences = killable_programs.differences(contents(stage), expected)
    assert not differences, (when, "\n".join(differences))


def reference(make_stage: MakeStage, kind: str, undisturbed: dict[str, Any]) -> dict[str, Any]:
    if kind not in undisturbed:
        stage = make_stage(kind)
        outcome: dict[str, Any] = {}
        for name, work in (
            ("up", killable_programs.bring_up),
            ("down", killable_programs.take_down),
        ):
            last = max((call["number"] for call in remote_control.calls(stage.cloud)), default=0)
            assert stage.run(work) == 0
            calls = remote_control.calls(stage.cloud, last)
            outcome[name] = contents(stage)
            outcome[f"{name} changes"] = [call["method"] for call in calls if call["mutating"]]
        undisturbed[kind] = outcome
    return undisturbed[kind]  # type: ignore[no-any-return]


def kill_and_repeat(
    make_stage: MakeStage,
    kind: str,
    expected: dict[str, Any],
    position: int,
    *,
    after: bool,
) -> list[str]:
    """Kill `up` at a change and repeat it, then `down`; return the methods they were killed at."""
    stage = make_stage(kind)
    killed = [stage.kill_at(killable_programs.bring_up, position, after=after)]
    assert stage.run(killable_programs.bring_up) == 0, killed
    compare(stage, expected["up"], killed)
    later = position % len(expected["down changes"]) + 1
    killed.append(stage.kill_at(killable_programs.take_down, later, after=after))
    assert stage.run(killable_programs.take_down) == 0, killed
    compare(stage, expected["down"], killed)
    return killed


@pytest.mark.parametrize("kind", KINDS)
def test_repeat_after_kill_at_some_calls_converges(
    make_stage: MakeStage, kind: str, undisturbed: dict[str, Any]
) -> None:
    expected = reference(make_stage, kind, undisturbed)
    choice = random.Random(f"killed {kind}")
    killed = []
    for position in choice.sample(range(1, len(expected["up changes"]) + 1), SAMPLE):
        killed += kill_and_repeat(make_stage, kind, expected, position, after=choice.random() < 0.5)
    assert (
        len([method for method in killed if method]) >= SAMPLE
    )  # some were killed before they exited


class ContentSet:
    """Contents that killed programs left, to repeat each program from every content only once."""

    def __init__(self) -> None:
        self._contents: list[dict[str, Any]] = []

    def is_new(self, content: dict[str, Any]) -> bool:
        if content in self._contents:
            return False
        self._contents.append(content)
        return True


def kills(expected: dict[str, Any], name: str, kind: str) -> list[tuple[int, bool]]:
    """Positions of changes, and whether the cloud has acted: a state of the cloud for each change.

    A program that is killed leaves nothing but the cloud's content: a kill at a read, or before
    the next change, leaves what a kill after a change does, unless independent changes run at the
    same time. The kinds share most steps, so the whole stack is killed before its changes, while
    others are made, and the others after theirs.
    """
    positions = range(1, len(expected[f"{name} changes"]) + 1)
    return [(position, kind != "whole") for position in positions]


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_up_converges_after_kill_at_every_change(
    make_stage: MakeStage, kind: str, undisturbed: dict[str, Any]
) -> None:
    expected = reference(make_stage, kind, undisturbed)
    left_contents = ContentSet()
    for position, after in kills(expected, "up", kind):
        stage = make_stage(kind)
        at = stage.kill_at(killable_programs.bring_up, position, after=after)
        if at == "" or left_contents.is_new(contents(stage)):
            assert stage.run(killable_programs.bring_up) == 0, at
            compare(stage, expected["up"], at)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_down_converges_after_kill_at_every_change(
    make_stage: MakeStage, kind: str, undisturbed: dict[str, Any]
) -> None:
    expected = reference(make_stage, kind, undisturbed)
    left_contents, stage = ContentSet(), None
    for position, after in kills(expected, "down", kind):
        if stage is None:
            stage = make_stage(kind)
            assert stage.run(killable_programs.bring_up) == 0
        at = stage.kill_at(killable_programs.take_down, position, after=after)
        left = contents(stage)
        if left == expected["up"]:
            continue  # killed before the first change: the stack can be used again
        if left_contents.is_new(left):
            assert stage.run(killable_programs.take_down) == 0, at
            compare(stage, expected["down"], at)
        stage = None


def distinct_changes(
    make_stage: MakeStage, kind: str, undisturbed: dict[str, Any], name: str
) -> list[Change]:
    """All changes of the whole stack; of another kind, those that the whole stack does not make."""
    common = (
        [] if kind == "whole" else reference(make_stage, "whole", undisturbed)[f"{name} changes"]
    )
    changes = reference(make_stage, kind, undisturbed)[f"{name} changes"]
    return [
        (method, changes[:index].count(method) + 1)
        for index, method in enumerate(changes)
        if method not in common
    ]


def lose_response(
    make_stage: MakeStage, kind: str, expected: dict[str, Any], in_up: Change, in_down: Change
) -> None:
    """Lose the response to a change of `up`, and to one of `down`, and repeat each."""
    stage = make_stage(kind)
    for name, work, (method, at) in (
        ("up", killable_programs.bring_up, in_up),
        ("down", killable_programs.take_down, in_down),
    ):
        with stage.fault("drop-response", method=method, at=at):
            stage.run(work)
        assert stage.run(work) == 0, (method, at)
        compare(stage, expected[name], (method, at))


@pytest.mark.parametrize("kind", KINDS)
def test_repeat_after_some_lost_responses_converges(
    make_stage: MakeStage, kind: str, undisturbed: dict[str, Any]
) -> None:
    expected = reference(make_stage, kind, undisturbed)
    choice = random.Random(f"lost {kind}")
    for position in choice.sample(range(1, len(expected["up changes"]) + 1), SAMPLE):
        later = position % len(expected["down changes"]) + 1
        lose_response(make_stage, kind, expected, ("mutating", position), ("mutating", later))


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_repeat_after_every_lost_response_converges(
    make_stage: MakeStage, kind: str, undisturbed: dict[str, Any]
) -> None:
    expected = reference(make_stage, kind, undisturbed)
    in_up, in_down = (
        distinct_changes(make_stage, kind, undisturbed, name) for name in ("up", "down")
    )
    assert len(in_up) >= len(in_down) > 0
    for change, later in zip(in_up, itertools.cycle(in_down), strict=False):
        lose_response(make_stage, kind, expected, change, later)
