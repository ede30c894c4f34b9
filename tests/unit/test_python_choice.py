"""Which Python a job asks for, and which it gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpuctl.errors import Refused, Usage
from tpuctl.jobs.requirements.python_choice import choose_python
from tpuctl.model.jobs.installation import PythonBuild
from tpuctl.model.scripts.python_request import parse_python, request_of

VERSIONS = ("3.14.2", "3.14.1", "3.13.9", "3.12.11", "3.12.7", "3.11.14", "3.10.19")
IMAGE_PYTHON = "3.10"
SCRIPT = """\
import os
# /// script
# requires-python = ">=3.13"
# dependencies = []
# ///
"""
PYPROJECT = '[project]\nname = "job"\nversion = "1"\nrequires-python = ">=3.12"\n'


def builds() -> list[PythonBuild]:
    return [
        PythonBuild(
            key=f"cpython-{version}-linux-x86_64-gnu-20261110",
            version=version,
            request=f"cpython-{version}-linux-x86_64-gnu",
        )
        for version in VERSIONS
    ]


def fits(minor: str, may_build: bool) -> str | None:
    return None


def version_of(setting: str, image: str = IMAGE_PYTHON) -> str | None:
    choice = choose_python(parse_python(setting, "--python"), image, builds, fits)
    return choice.build.version if choice.build is not None else None


@pytest.mark.parametrize(
    ("setting", "image", "version"),
    [
        ("image", "3.10", None),
        ("3.10", "3.10", None),
        (">=3.8", "3.10", None),
        (">=3.10.4", "3.10", None),
        ("3.12", "3.10", "3.12.11"),
        ("3.12", "3.12", None),
        ("3.12.7", "3.12", "3.12.7"),
        ("3.10.19", "3.10", "3.10.19"),
        ("cpython-3.12", "3.10", "3.12.11"),
        (">=3.11", "3.10", "3.14.2"),
        (">=3.12,<3.14", "3.10", "3.13.9"),
        (">3.10,<3.12", "3.12", "3.11.14"),
        ("~=3.12.8", "3.10", "3.12.11"),
        ("<3.11", "3.12", "3.10.19"),
        ("3", "3.10", None),
        (">=3.11", "", "3.14.2"),
    ],
)
def test_images_python_where_allowed_else_newest_build(
    setting: str, image: str, version: str | None
) -> None:
    assert version_of(setting, image) == version


def test_newest_for_which_requirements_resolve() -> None:
    def problem(minor: str, may_build: bool) -> str | None:
        return None if minor == "3.12" else f"no wheel for {minor}"

    choice = choose_python(
        parse_python(">=3.11", "pyproject.toml:4"), IMAGE_PYTHON, builds, problem
    )
    assert str(choice) == "Python 3.12.11 (pyproject.toml:4)"


def test_requirements_that_fit_none_are_refused_with_each_reason() -> None:
    request = parse_python(">=3.12,<3.14", "pyproject.toml:4")
    with pytest.raises(Refused) as refusal:
        choose_python(
            request, IMAGE_PYTHON, builds, lambda minor, may_build: f"no wheel for {minor}"
        )
    [problem] = refusal.value.diagnostics
    assert problem.where == "pyproject.toml:4"
    assert "Python 3.13: no wheel for 3.13\nPython 3.12: no wheel for 3.12" in problem.detail


@pytest.mark.parametrize(
    ("setting", "exist"),
    [
        ("3.12.99", "3.12.11, 3.12.7"),
        (">=3.15", "3.14.2, 3.13.9, 3.12.11, 3.11.14, 3.10.19"),
        ("2.7", "3.14.2, 3.13.9, 3.12.11, 3.11.14, 3.10.19"),
    ],
)
def test_python_without_build_is_refused_with_those_that_exist(setting: str, exist: str) -> None:
    with pytest.raises(Refused) as refusal:
        version_of(setting)
    [problem] = refusal.value.diagnostics
    assert problem.summary == "No such Python"
    assert f"no build exists for linux x86_64; these do: {exist}" in problem.detail


@pytest.mark.parametrize("setting", ["three", "3.12rc1x", ">=", "3.12;", "pypy3.10", "3.1.2.3"])
def test_what_is_no_version_is_refused(setting: str) -> None:
    with pytest.raises(Usage) as refusal:
        parse_python(setting, "job.python")
    assert refusal.value.diagnostics[0].where == "job.python"


def test_order_of_what_asks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (tmp_path / ".python-version").write_text("# for pyenv\n3.12.7\n3.11\n")
    (tmp_path / "uv.lock").write_text('version = 1\nrequires-python = ">=3.11"\n')
    (tmp_path / "pylock.toml").write_text('lock-version = "1.0"\nrequires-python = ">=3.13"\n')
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    requests = []
    own_files = ("tpuctl.yaml", "train.py", ".python-version")
    for name in (*own_files, "uv.lock", "pylock.toml", "pyproject.toml"):
        request = request_of("3.9" if name == "tpuctl.yaml" else "auto", tmp_path, script)
        assert request is not None
        requests.append((request.where.removeprefix(f"{tmp_path}/"), str(request)))
        (tmp_path / name).unlink(missing_ok=True)
    assert requests == [
        ("job.python", "Python 3.9"),
        ("train.py:3", "Python >=3.13"),
        (".python-version:2", "Python 3.12.7"),
        ("uv.lock:2", "Python >=3.11"),
        ("pylock.toml:2", "Python >=3.13"),
        ("pyproject.toml:4", "Python >=3.12"),
    ]
    assert request_of("auto", tmp_path, script) is None


@pytest.mark.parametrize(
    ("constraint", "allowed", "refused"),
    [
        ("^3.12", ["3.12.1", "3.14.0"], ["3.11.9", "4.0.0"]),
        ("^3.12.4", ["3.12.4", "3.13.0"], ["3.12.3"]),
        ("~3.12", ["3.12.9"], ["3.13.0", "3.11.0"]),
        ("~3.12.4", ["3.12.4"], ["3.12.3", "3.13.0"]),
        (">=3.11,<3.13", ["3.12.0"], ["3.13.0"]),
        (">=3.11, <3.13", ["3.12.0"], ["3.13.0"]),
        (">= 3.11 <3.13", ["3.12.0"], ["3.13.0", "3.10.0"]),
        ("3.12.*", ["3.12.0"], ["3.13.0"]),
    ],
)
def test_poetrys_python(
    tmp_path: Path, constraint: str, allowed: list[str], refused: list[str]
) -> None:
    text = f'[tool.poetry]\nname = "job"\n[tool.poetry.dependencies]\npython = "{constraint}"\n'
    (tmp_path / "pyproject.toml").write_text(text)
    request = request_of("auto", tmp_path)
    assert request is not None
    assert request.where == f"{tmp_path / 'pyproject.toml'}:4"
    assert [version for version in allowed if not request.allows(version)] == []
    assert [version for version in refused if request.allows(version)] == []


@pytest.mark.parametrize("constraint", ["~2.7 || ^3.12", "*", "latest"])
def test_alternatives_of_poetrys_python_ask_for_nothing(tmp_path: Path, constraint: str) -> None:
    text = f'[tool.poetry.dependencies]\npython = "{constraint}"\n'
    (tmp_path / "pyproject.toml").write_text(text)
    assert request_of("auto", tmp_path) is None
