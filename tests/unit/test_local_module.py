"""Modules of the repository that a job did not find: never advised as packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tpuctl.model.scripts.local_module import find_module, module_hint

LINE = "ModuleNotFoundError: No module named '{}'"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name in (".git/HEAD", "jobs/train.py", "libs/helper/__init__.py", "tools.py", "data/a.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".venv/lib/flax").mkdir(parents=True)
    (tmp_path / ".venv/lib/flax/__init__.py").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("helper", "libs/helper"),
        ("tools", "tools.py"),
        ("jobs.train", "jobs/train.py"),
        ("helper.absent", ""),  # the package was found, and has no such module
        ("flax", ""),  # in a virtual environment
        ("data", ""),  # not a package
        ("numpy", ""),
    ],
)
def test_module_of_the_repository(repository: Path, name: str, path: str) -> None:
    expected = repository / path if path else None
    assert find_module(LINE.format(name), repository / "jobs") == expected


def test_hint_names_the_module_and_no_requirements(repository: Path) -> None:
    module = find_module(LINE.format("helper"), repository)
    assert module is not None
    cause, hint = module_hint(module, repository)
    assert "libs/helper" in cause
    assert "requirements" not in cause + hint


def test_explain_does_not_advise_a_package(repository: Path) -> None:
    for name, is_package in (("helper", False), ("numpy", True)):
        argv = [sys.executable, "-m", "tpuctl", "explain", "--error", LINE.format(name)]
        answer = subprocess.run(argv, cwd=repository, capture_output=True, text=True, check=True)
        assert ("requirements.txt" in answer.stdout) == is_package
