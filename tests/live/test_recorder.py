"""Records of runs: outcomes and states in their order, no private names."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.live.harness.recorder import Recorder
from tests.live.harness.transcript import Redaction
from tpuctl.errors import NotFound


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    redaction = Redaction({"my-project": "PROJECT"})
    return Recorder(tmp_path / "record.json", redaction, {"cloud": "local"})


def test_failed_step_is_recorded_before_error_is_raised(recorder: Recorder) -> None:
    with pytest.raises(NotFound), recorder.step("up"):
        assert recorder.record["outcomes"] == {"up": "begun"}
        raise NotFound("No network", "my-project has none")
    assert recorder.record["outcomes"] == {"up": "NotFound: No network: PROJECT has none"}
    assert "PROJECT has none" in recorder.path.read_text("utf-8")


def test_missing_refusal_fails(recorder: Recorder) -> None:
    with (
        pytest.raises(AssertionError, match="was not refused"),
        recorder.expect_refusal("it", NotFound),
    ):
        pass
    with recorder.expect_refusal("it", NotFound):
        raise NotFound("No node", "not found")
    assert recorder.record["facts"]["refusal of it"].startswith("NotFound, ")
    assert recorder.record["facts"]["refusal of it"].endswith(": No node")


async def test_states_are_recorded_in_observed_order(recorder: Recorder) -> None:
    states: list[Any] = [None, "CREATING", "CREATING", "READY"]
    is_finished = asyncio.Event()

    async def read_state() -> str | None:
        if len(states) == 1:
            is_finished.set()
            return str(states[0])
        return states.pop(0)  # type: ignore[no-any-return]

    with recorder.step("up"):
        async with recorder.watch_states("the node", read_state, 0.001):
            await asyncio.wait_for(is_finished.wait(), 20)
    recorded = recorder.record["states"]["up: the node"]["observed"]
    assert [state["state"] for state in recorded] == ["ABSENT", "CREATING", "READY"]
