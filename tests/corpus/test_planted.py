"""The check on scripts in which others planted mistakes, before they knew its rules."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tpuctl.preflight.check import check_project, default_target
from tpuctl.preflight.findings import Severity

FOLDER = Path(__file__).parent / "planted"
SCRIPTS: list[dict[str, Any]] = tomllib.loads((FOLDER / "labels.toml").read_text("utf-8"))["script"]
NEAR = range(
    -2, 4
)  # where a finding may be, from the line of its mistake: a call, or its statement


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script["file"])
def test_planted_mistakes_are_found_and_nothing_else(script: dict[str, Any]) -> None:
    findings = check_project(FOLDER / script["file"], default_target()).findings
    lines = {finding.line for finding in findings}
    mistakes = script.get("mistakes", [])
    places = {mistake["line"]: {mistake["line"] + step for step in NEAR} for mistake in mistakes}
    assert [line for line, place in places.items() if place & lines] == [
        mistake["line"] for mistake in mistakes if not mistake.get("missed")
    ]
    others = [
        f"{finding.code}:{finding.line}"
        for finding in findings
        if not any(finding.line in place for place in places.values())
    ]
    assert others == script.get("also", [])
    if not mistakes:
        assert not [each for each in findings if each.severity is Severity.error]


def test_most_are_found() -> None:
    mistakes = [mistake for script in SCRIPTS for mistake in script.get("mistakes", [])]
    assert len(mistakes) == 93
    assert sum(not mistake.get("missed") for mistake in mistakes) >= 84
    assert len([script for script in SCRIPTS if "mistakes" not in script]) == 11
