"""A computer whose clock is wrong: jobs are ordered, and costs computed, by Google's."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.recovery_jobs import script
from tests.support.subprocesses import run_captured
from tpuctl.api import Tpuctl
from tpuctl.errors import Diagnostic
from tpuctl.model.events import Event, WarningIssued

SET_CLOCK = Path(__file__).parents[1] / "support" / "set_clock.py"
HOURS = 3


def answer(stack: Tpuctl, *words: str) -> dict[str, Any]:
    """The answer of a command on a computer whose clock is ahead."""
    folder = stack.stack_file.parent
    (folder / "offset").write_text(str(HOURS * 3600))
    program = Path(sys.executable).with_name("tpuctl")
    command = [sys.executable, SET_CLOCK, "offset", "looks", program, *words, "--json"]
    done = run_captured(command, cwd=folder)
    assert done.stdout, done.stderr
    envelope = json.loads(done.stdout)
    assert envelope["exit_code"] == 0, envelope["diagnostics"]
    return dict(envelope)


def clock_warnings(events: list[Event]) -> list[Diagnostic]:
    warnings = [event.diagnostic for event in events if isinstance(event, WarningIssued)]
    return [warning for warning in warnings if warning.summary == "Clock is wrong"]


async def test_jobs_and_costs_go_by_the_clock_of_the_cloud(
    make_stack: Callable[..., Tpuctl], events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = make_stack()
    await stack.up()
    job = script(stack, "print('ran')\n")
    first = await stack.submit(job)
    assert clock_warnings(events) == []
    assert await stack.follow(first) == 0

    class Late(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) - timedelta(hours=HOURS)

    with monkeypatch.context() as patch:
        patch.setattr("tpuctl.cloud.server_clock.datetime", Late)
        second = await stack.submit(job)
    (warning,) = clock_warnings(events)
    assert f"{HOURS} h behind Google's" in warning.detail
    assert abs(second.submitted - datetime.now(UTC)) < timedelta(minutes=1)
    assert second.id[:13] >= first.id[:13]
    assert await stack.follow(second) == 0

    status = answer(stack, "status")["data"]
    assert 0 < status["nodes"][0]["age_hours"] < 0.1
    assert 0 <= status["cost_so_far"] < status["per_hour"] * 0.1
    assert [job["id"] for job in status["jobs"]] == [second.id]
    checks = {check["check"]: check for check in answer(stack, "doctor")["data"]["checks"]}
    assert checks["clock"]["state"] == "warning"
    assert f"{HOURS} h ahead of Google's" in checks["clock"]["message"]
    assert (await stack.down(delete_bucket=True)).leaks == ()
