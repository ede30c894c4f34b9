"""`up` and `down` converge when repeated after a kill or a lost response."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.crash import killable_programs
from tests.crash.conftest import EXHAUSTIVE_KINDS, KINDS, Stage
from tpuctl.emulator.client import remote_control

MakeStage = Callable[[str], Stage]
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
            outcome[f"{name} calls"] = len(calls)
            outcome[f"{name} changes"] = sum(call["mutating"] for call in calls)
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
    killed = [stage.kill_at(killable_programs.bring_up, position, after=after, every=False)]
    assert stage.run(killable_programs.bring_up) == 0, killed
    compare(stage, expected["up"], killed)
    later = position % expected["down changes"] + 1
    killed.append(stage.kill_at(killable_programs.take_down, later, after=after, every=False))
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
    for position in choice.sample(range(1, expected["up changes"] + 1), SAMPLE):
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


def every_call(expected: dict[str, Any], name: str, kind: str) -> list[tuple[int, bool, bool]]:
    """Position, `after` and `every`: before each call, and after each mutating one.

    A program killed at a read leaves the same content as after the previous change, so only the
    "whole" stack is also killed at reads.
    """
    includes_reads = kind == "whole"
    count = expected[f"{name} calls" if includes_reads else f"{name} changes"]
    before = [(number, False, includes_reads) for number in range(1, count + 1)]
    after = [(number, True, False) for number in range(1, expected[f"{name} changes"] + 1)]
    return before + after


@pytest.mark.soak
@pytest.mark.release("every call; `make test` draws some of them")
@pytest.mark.parametrize("kind", EXHAUSTIVE_KINDS)
def test_up_converges_after_kill_at_every_call(
    make_stage: MakeStage, kind: str, undisturbed: dict[str, Any]
) -> None:
    expected = reference(make_stage, kind, undisturbed)
    left_contents = ContentSet()
    for position, after, every in every_call(expected, "up", kind):
        stage = make_stage(kind)
        at = stage.kill_at(killable_programs.bring_up, position, after=after, every=every)
        if at == "" or left_contents.is_new(contents(stage)):
            assert stage.run(killable_programs.bring_up) == 0, at
            compare(stage, expected["up"], at)


@pytest.mark.soak
@pytest.mark.release("every call; `make test` draws some of them")
@pytest.mark.parametrize("kind", EXHAUSTIVE_KINDS)
def test_down_converges_after_kill_at_every_call(
    make_stage: MakeStage, kind: str, undisturbed: dict[str, Any]
) -> None:
    expected = reference(make_stage, kind, undisturbed)
    left_contents, stage = ContentSet(), None
    for position, after, every in every_call(expected, "down", kind):
        if stage is None:
            stage = make_stage(kind)
            assert stage.run(killable_programs.bring_up) == 0
        at = stage.kill_at(killable_programs.take_down, position, after=after, every=every)
        left = contents(stage)
        if left == expected["up"]:
            continue  # killed at a read: the stack can be used again
        if left_contents.is_new(left):
            assert stage.run(killable_programs.take_down) == 0, at
            compare(stage, expected["down"], at)
        stage = None


def lose_response(
    make_stage: MakeStage, kind: str, expected: dict[str, Any], position: int
) -> None:
    """Lose the response to a mutating call of `up`, and of `down`, and repeat each."""
    stage = make_stage(kind)
    with stage.fault("drop-response", method="mutating", at=position):
        stage.run(killable_programs.bring_up)
    assert stage.run(killable_programs.bring_up) == 0
    compare(stage, expected["up"], position)
    with stage.fault(
        "drop-response", method="mutating", at=position % expected["down changes"] + 1
    ):
        stage.run(killable_programs.take_down)
    assert stage.run(killable_programs.take_down) == 0
    compare(stage, expected["down"], position)


@pytest.mark.parametrize("kind", KINDS)
def test_repeat_after_some_lost_responses_converges(
    make_stage: MakeStage, kind: str, undisturbed: dict[str, Any]
) -> None:
    expected = reference(make_stage, kind, undisturbed)
    choice = random.Random(f"lost {kind}")
    for position in choice.sample(range(1, expected["up changes"] + 1), SAMPLE):
        lose_response(make_stage, kind, expected, position)


@pytest.mark.soak
@pytest.mark.release("every change; `make test` draws some of them")
@pytest.mark.parametrize("kind", EXHAUSTIVE_KINDS)
def test_repeat_after_every_lost_response_converges(
    make_stage: MakeStage, kind: str, undisturbed: dict[str, Any]
) -> None:
    expected = reference(make_stage, kind, undisturbed)
    for position in range(1, expected["up changes"] + 1):
        lose_response(make_stage, kind, expected, position)
