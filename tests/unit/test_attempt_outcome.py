"""Whether deleted machines had reached a limit, with slightly different clocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.stacks import stack_from
from tpuctl.flows.jobs.attempt_outcome import CLOCK_SKEW, reached_limit
from tpuctl.model.cost.stack_cost import cost_of
from tpuctl.model.stack.stack import Stack

HOUR = 3600.0
CLOCK_SKEW_SECONDS = CLOCK_SKEW.total_seconds()


def stack(folder: Path, limits: str) -> Stack:
    return stack_from(
        folder,
        "stack: one\nproject: {id: my-project}\n"
        f"tpu: {{type: v2-8, zones: [us-central1-b]}}\nlimits: {limits}\n",
    )


def limit_at(of: Stack, age: float) -> str:
    now = datetime.now(UTC)
    return reached_limit(of, now - timedelta(seconds=age), now + CLOCK_SKEW)


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        (HOUR + 1, "limits.max_hours, 1 hours"),
        (HOUR - CLOCK_SKEW_SECONDS / 2, "limits.max_hours, 1 hours"),
        (HOUR - CLOCK_SKEW_SECONDS * 2, ""),
    ],
)
def test_max_hours_is_reached_with_clock_skew(tmp_path: Path, age: float, expected: str) -> None:
    assert limit_at(stack(tmp_path, "{max_hours: 1}"), age) == expected


def test_max_cost_is_reached_with_clock_skew(tmp_path: Path) -> None:
    of = stack(tmp_path, "{max_cost: 9}")
    hourly = cost_of(of).per_hour
    assert hourly is not None
    seconds = 9 / hourly * HOUR
    assert limit_at(of, seconds - 1) == limit_at(of, seconds + 1) == "limits.max_cost, $9.00"
    assert limit_at(of, seconds - CLOCK_SKEW_SECONDS * 2) == ""


def test_no_limit_is_reached_without_limits_or_creation_time(tmp_path: Path) -> None:
    assert limit_at(stack(tmp_path, "{}"), 10**8) == ""
    assert reached_limit(stack(tmp_path, "{max_hours: 1}"), None, datetime.now(UTC)) == ""
