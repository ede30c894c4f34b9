"""The check against programs whose faults no compiler tells: machines, files, versions, secrets."""

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
def test_the_check_says_what_the_label_says(program: dict[str, Any]) -> None:
    script = FOLDER / program["file"]
    report = check_project(script, Target(**program["context"]))
    folder = script.parent
    found = [
        f"{one.code}:{one.line}"
        if one.path == script
        else f"{one.code}:{one.path.relative_to(folder)}:{one.line}"
        for one in report.findings
    ]
    told = [f"{one.code}:{one.path.name}:{one.line}: {one.message}" for one in report.findings]
    assert sorted(found) == sorted(program["codes"]), told


def test_no_program_is_labeled_twice_in_one_context() -> None:
    names = [identity(program) for program in PROGRAMS]
    assert len(set(names)) == len(names)


def test_every_file_belongs_to_a_labeled_program() -> None:
    labeled = {program["file"] for program in PROGRAMS}
    folders = {name.partition("/")[0] for name in labeled if "/" in name}
    files = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.py")}
    assert {name for name in files if name.partition("/")[0] not in folders} <= labeled
    assert labeled <= files


def test_there_are_enough_and_half_of_them_are_good() -> None:
    silent = [program for program in PROGRAMS if not program["codes"]]
    assert len({program["file"] for program in PROGRAMS}) >= 70
    assert 0.4 <= len(silent) / len(PROGRAMS) <= 0.7


@pytest.mark.parametrize("family", FAMILIES)
def test_every_code_of_a_family_is_labeled_somewhere(family: str) -> None:
    codes = {code.partition(":")[0] for program in PROGRAMS for code in program["codes"]}
    last = {"TPU3": 4, "TPU4": 6, "TPU5": 4}[family]
    assert {code for code in codes if code.startswith(family)} == {
        f"{family}0{number}" for number in range(1, last + 1)
    }
