"""The history of requests for TPUs: summaries by zone, and the file on this computer."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tpuctl.model.capacity import capacity_history
from tpuctl.model.capacity.capacity_history import (
    CapacityAttempt,
    history_file,
    merge_attempts,
    read_attempts,
    remember_attempts,
    zone_histories,
)

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
GRANTED = CapacityAttempt(NOW - timedelta(days=2), "us-east5-a", "v6e-8", "spot", 240.0)
REFUSED = replace(GRANTED, time=NOW - timedelta(hours=3), seconds=40.0, error="No capacity")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("attempts", "text"),
    [
        ([GRANTED], "spot: granted 2 d ago after 4 min"),
        ([REFUSED], "spot: refused once, last 3 h ago (No capacity)"),
        (
            [REFUSED, GRANTED, replace(REFUSED, time=NOW)],
            "spot: granted 2 d ago after 4 min, refused 2 times since (No capacity)",
        ),
        (
            [REFUSED, replace(REFUSED, time=NOW - timedelta(hours=5))],
            "spot: refused 2 times, last 3 h ago (No capacity)",
        ),
        (
            [replace(REFUSED, time=NOW - timedelta(days=3)), GRANTED],
            "spot: granted 2 d ago after 4 min",
        ),
        (
            [replace(GRANTED, api="compute")],
            "spot through Compute Engine: granted 2 d ago after 4 min",
        ),
    ],
)
def test_summary_of_a_zone(attempts: list[CapacityAttempt], text: str) -> None:
    (history,) = zone_histories(attempts, "v6e-8")["us-east5-a"]
    assert history.text(NOW) == text


def test_summaries_are_separate_by_zone_type_capacity_and_api() -> None:
    attempts = [
        GRANTED,
        replace(REFUSED, capacity="on-demand"),
        replace(GRANTED, zone="us-east5-b"),
        replace(GRANTED, type="v6e-4"),
        replace(REFUSED, api="compute"),
    ]
    histories = zone_histories(attempts, "v6e-8")
    assert {
        zone: [(each.capacity, each.api) for each in group] for zone, group in histories.items()
    } == {
        "us-east5-a": [("on-demand", "tpu"), ("spot", "compute"), ("spot", "tpu")],
        "us-east5-b": [("spot", "tpu")],
    }


def test_merged_histories_have_each_attempt_once_and_are_bounded() -> None:
    assert merge_attempts([REFUSED, GRANTED], [GRANTED], limit=9) == (GRANTED, REFUSED)
    assert merge_attempts([REFUSED, GRANTED], limit=1) == (REFUSED,)


def test_file_keeps_clouds_apart_and_is_private() -> None:
    remember_attempts("local", [GRANTED])
    remember_attempts("google", [REFUSED])
    remember_attempts("google", [REFUSED, GRANTED])
    assert read_attempts("local") == (GRANTED,)
    assert read_attempts("google") == (GRANTED, REFUSED)
    assert stat.S_IMODE(history_file().parent.stat().st_mode) == 0o700


def test_file_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity_history, "MAX_ATTEMPTS", 3)
    times = [NOW + timedelta(seconds=second) for second in range(5)]
    for time in times:
        remember_attempts("google", [replace(GRANTED, time=time)])
    assert [attempt.time for attempt in read_attempts("google")] == times[-3:]


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "[" * 100_000, '{"version": 2}'),
        '{"version": 1, "clouds": {"google": [{"zone": 1}]}}',
        *(
            f'{{"version": 1, "clouds": {{"google": [{{"time": "{at}", "zone": "z", "type": "t", '
            f'"capacity": "spot", "seconds": {seconds}}}]}}}}'
            for at, seconds in (
                ("2026-11-27T08:00:00", 1),  # without a time zone: cannot be compared
                ("9999-12-31T23:59:59-14:00", 1),
                ("2026-11-27T08:00:00Z", "NaN"),
                ("2026-11-27T08:00:00Z", "1e999"),
            )
        ),
    ],
    ids=lambda text: text[:120],
)
def test_damaged_file_counts_as_empty(text: str) -> None:
    history_file().parent.mkdir()
    history_file().write_text(text)
    assert read_attempts("google") == ()
    remember_attempts("google", [GRANTED])
    assert read_attempts("google") == (GRANTED,)
    assert json.loads(history_file().read_text())["version"] == 1


def test_file_that_cannot_be_written_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the folder belongs")
    remember_attempts("google", [GRANTED])
    assert read_attempts("google") == ()
