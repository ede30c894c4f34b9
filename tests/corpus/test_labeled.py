"""The check on programs with faults unknown to the compiler: machines, files, versions, secrets."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tpuctl.preflight.check import check_project
from tpuctl.preflight.findings import Target

FOLDER = Path(__file__).parent / "labeled"
PROGRAMS: list[dict[str, Any]] = tomllib.loads((FOLDER / "labels.toml").read_text("utf-8"))[
    "program"
]
FAMILIES = ("TPU3", "TPU4", "TPU5")


def identity(program: dict[str, Any]) -> str:
    context = program["context"]
    where = f"{context['kind']}-{context.get('tensorflow', 'any')}-{context.get('replicas', 'any')}"
    return f"{program['file']}-{where}"


@pytest.mark.parametrize("program", PROGRAMS, ids=identity)
def test_findings_match_labels(program: dict[str, Any]) -> None:
    script = FOLDER / program["file"]
    report = check_project(script, Target(**program["context"]))
    folder = script.parent
    expected = [
        f"{finding.code}:{finding.line}"
        if finding.path == script
        else f"{finding.code}:{finding.path.relative_to(folder)}:{finding.line}"
        for finding in report.findings
    ]
    reported = [
        f"{finding.code}:{finding.path.name}:{finding.line}: {finding.message}"
        for finding in report.findings
    ]
    assert sorted(expected) == sorted(program["codes"]), reported


def test_programs_are_labeled_once_per_context() -> None:
    names = [identity(program) for program in PROGRAMS]
    assert len(set(names)) == len(names)


def test_every_file_belongs_to_labeled_program() -> None:
    labeled = {program["file"] for program in PROGRAMS}
    folders = {name.partition("/")[0] for name in labeled if "/" in name}
    files = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.py")}
    assert {name for name in files if name.partition("/")[0] not in folders} <= labeled
    assert labeled <= files


def test_enough_programs_and_half_are_good() -> None:
    silent = [program for program in PROGRAMS if not program["codes"]]
    assert len({program["file"] for program in PROGRAMS}) >= 70
    assert 0.4 <= len(silent) / len(PROGRAMS) <= 0.7


@pytest.mark.parametrize("family", FAMILIES)
def test_every_code_is_labeled(family: str) -> None:
    codes = {code.partition(":")[0] for program in PROGRAMS for code in program["codes"]}
    last = {"TPU3": 4, "TPU4": 6, "TPU5": 4}[family]
    assert codes >= {f"{family}0{number}" for number in range(1, last + 1)}
