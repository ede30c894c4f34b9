"""The cases of each rule: `tests/cases/check/`, one file per rule, with the rule's name."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.rule_cases import CASES
from tests.support.rule_checker import RuleChecker
from tpuctl.preflight.findings import Target


def cases() -> Iterator[object]:
    for file in sorted(CASES.glob("*.toml")):
        for number, case in enumerate(tomllib.loads(file.read_text("utf-8"))["case"]):
            yield pytest.param(file, case, id=f"{file.stem}-{number}")


@pytest.mark.parametrize(("file", "case"), list(cases()))
def test_findings_match_markers(file: Path, case: dict[str, Any], tmp_path: Path) -> None:
    assert case["why"], file
    code = file.stem.partition("_")[0].upper()
    settings = {"tensorflow": "2.18.0", "replicas": 8, **case.get("target", {})}
    lists = {name: tuple(value) for name, value in settings.items() if isinstance(value, list)}
    target = Target(**(settings | lists))
    RuleChecker(tmp_path, code).assert_marked(case["source"], target)
