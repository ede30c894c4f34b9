"""The mirror of Pythons that tests use, with uv."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.python_mirror import PythonMirror, packed, portable_interpreter, unpacked
from tests.support.subprocesses import run_captured
from tpuctl.jobs.requirements.uv_program import uv_path

PROGRAM = "import sys, ssl, venv, sqlite3, ensurepip; print(sys.prefix)"
MODULES = "import sys; print(sys.version.split()[0], sys.prefix)"


@pytest.mark.parametrize("minor", ["3.8", "3.10", "3.13"])
def test_packed_python_runs_from_another_folder(minor: str, tmp_path: Path) -> None:
    python = unpacked(packed(portable_interpreter(minor)), tmp_path)
    result = run_captured([python, "-I", "-c", PROGRAM])
    assert (result.returncode, result.stdout.strip()) == (0, str(tmp_path / "python"))


@pytest.mark.parametrize("by_mirror", [False, True])
def test_uv_installs_from_mirror(pythons: PythonMirror, by_mirror: bool, tmp_path: Path) -> None:
    options = ["--no-bin", "--install-dir", str(tmp_path / "in")]
    command = [uv_path(), "python", "install", *options, "3.12"]
    extra = pythons.mirror_variables if by_mirror else pythons.variables
    subprocess.run(command, env={**os.environ, **extra}, check=True, capture_output=True)
    (program,) = tmp_path.glob("in/cpython-3.12.*/bin/python3")
    version, prefix = run_captured([program, "-c", MODULES]).stdout.split()
    assert Path(prefix) == program.parent.parent.resolve()
    assert pythons.key(version) == pythons.key("3.12")
    assert len(pythons.requests) == 1
    assert pythons.bytes_sent == pythons.archive("3.12").stat().st_size
