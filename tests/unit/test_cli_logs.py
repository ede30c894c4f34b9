"""The options of `logs`: valid ranges, and errors that name the invalid option."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from tpuctl.cli.main import run
from tpuctl.errors import Usage
from tpuctl.flows.jobs.interactive_follow import resume_flags
from tpuctl.model.logs.log_range import LogRange, compile_pattern, parse_timestamp

NOW = datetime(2026, 3, 2, 12, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--since", "yesterday"), ("--since", "'yesterday'", "--since 10m")),
        (("--since", "10"), ("--since", "'10'")),
        (("--since", "25:00"), ("--since", "'25:00'")),
        (("--since", "2999-01-01"), ("--since", "Time is in the future", "2999-01-01")),
        (("--grep", "["), ("--grep", "unterminated", "character 1")),
        (("--grep", "(?P<a>x)(?P<a>y)"), ("--grep", "redefinition")),
        (("--tail", "-1"), ("--tail", "greater than or equal to 0")),
        (("--tail", "0"), ("--tail", "logs -f --tail 0")),
        (("--offset", "0", "--tail", "3"), ("--offset", "--tail")),
        (("--offset", "0", "--since", "10m"), ("--offset", "--since")),
        (("-f", "--offset", "7", "--all-workers"), ("--offset", "--all-workers")),
    ],
)
def test_conflicting_log_options_are_rejected(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    expected: tuple[str, ...],
) -> None:
    """Before any query to a cloud: there is not even a stack file here."""
    monkeypatch.chdir(tmp_path)
    assert run(["logs", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    for name in expected:
        assert name in captured.err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10m", timedelta(minutes=10)),
        ("1h30m", timedelta(minutes=90)),
        ("1.5h", timedelta(minutes=90)),
        ("0s", timedelta()),
        ("2026-03-02T12:00Z", timedelta(minutes=30)),
        ("2026-03-02 13:00+01:00", timedelta(minutes=30)),
    ],
)
def test_timestamps_are_parsed(text: str, expected: timedelta) -> None:
    assert parse_timestamp(text, NOW) == NOW - expected


def test_time_of_day_is_the_most_recent_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    here = NOW.astimezone()
    assert parse_timestamp(f"{here:%H:%M:%S}", NOW) == NOW
    later = here + timedelta(minutes=5)
    assert parse_timestamp(f"{later:%H:%M}", NOW) == NOW - timedelta(days=1) + timedelta(minutes=5)
    assert parse_timestamp(f"{here:%Y-%m-%d %H:%M}", NOW) == NOW
    east = NOW.astimezone(timezone(timedelta(hours=9)))
    assert parse_timestamp(east.isoformat(), NOW) == NOW


def test_too_long_duration_is_rejected() -> None:
    with pytest.raises(Usage):
        parse_timestamp("99999999999d", NOW)


@pytest.mark.parametrize(
    ("part", "expected", "all_workers", "flags"),
    [
        (None, None, False, []),
        (LogRange(), 70, False, ["--offset", "70"]),
        (LogRange(50), None, False, ["--offset", "50"]),
        (LogRange(lines=5), None, False, ["--tail", "5"]),
        (LogRange(lines=5), 70, False, ["--offset", "70"]),
        (LogRange(lines=5), 70, True, ["--all-workers", "--tail", "5"]),
        (LogRange(since=NOW), None, False, ["--since", "2026-03-02T12:30:00+00:00"]),
        (LogRange(pattern=compile_pattern("a b")), 70, False, ["--offset", "70", "--grep", "a b"]),
    ],
)
def test_resume_command_is_shown(
    part: LogRange | None, expected: int | None, all_workers: bool, flags: list[str]
) -> None:
    assert shlex.split(resume_flags(part, expected, all_workers=all_workers)) == flags
