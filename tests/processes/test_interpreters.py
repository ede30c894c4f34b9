"""Interpreters on PATH, in pyenv, in uv's folder, or downloaded by uv."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.prerequisites import hide_interpreters, other_interpreter
from tests.support.python_mirror import python_mirror
from tpuctl import interpreters
from tpuctl.interpreters import current, find, or_list

FOLDERS = {
    "PATH": "",
    "PYENV_ROOT": "versions/{version}/bin",
    "UV_PYTHON_INSTALL_DIR": "cpython-{version}-linux-x86_64-gnu/bin",
}


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty folders named after the variables that contain their paths."""
    other_interpreter()  # before the usual locations are hidden
    hide_interpreters(tmp_path, monkeypatch)
    return tmp_path


def test_current_interpreter_is_preferred(empty: Path) -> None:
    other = other_interpreter()
    assert find([other.minor, current().minor]) == current()


def test_missing_interpreter_is_not_found(empty: Path) -> None:
    assert find([other_interpreter().minor]) is None


@pytest.mark.parametrize("variable", FOLDERS)
def test_other_interpreter_is_found_in_each_location(empty: Path, variable: str) -> None:
    other = other_interpreter()
    folder = empty / variable / FOLDERS[variable].format(version=other.version)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"python{other.minor}").symlink_to(other.path)
    interpreter = find([other.minor])
    assert interpreter is not None and interpreter.version == other.version
    result = subprocess.run([interpreter.path, "-V"], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["Python", other.version]


# As printed by pyenv's shim of a version that is not selected, and by Debian's Python without the
# package python3.X-venv.
@pytest.mark.parametrize(
    "script",
    [
        "echo 'pyenv: python3: command not found' >&2; exit 127",
        "echo \"ModuleNotFoundError: No module named 'ensurepip'\" >&2; exit 1",
        "exit 0",
    ],
)
def test_unusable_interpreter_is_skipped(empty: Path, script: str) -> None:
    other = other_interpreter()
    program = f"python{other.minor}"
    stub = empty / "PATH" / program
    stub.write_text(f"#!/bin/sh\n{script}\n")
    stub.chmod(0o755)
    assert find([other.minor]) is None
    folder = empty / "PYENV_ROOT" / "versions" / other.version / "bin"
    folder.mkdir(parents=True)
    (folder / program).symlink_to(other.path)
    interpreter = find([other.minor])
    assert interpreter is not None and interpreter.version == other.version


def test_interpreter_with_wrong_version_is_skipped(empty: Path) -> None:
    other = other_interpreter()
    (empty / "PATH" / "python3.99").symlink_to(other.path)
    assert find(["3.99"]) is None


@pytest.mark.parametrize(
    ("minors", "text"), [(["3.11"], "3.11"), (["3.11", "3.12", "3.13"], "3.11, 3.12 or 3.13")]
)
def test_list_is_joined_with_or(minors: list[str], text: str) -> None:
    assert or_list(minors) == text


@pytest.mark.soak
async def test_uv_downloads_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The uv that comes with tpuctl, also if there is none on PATH."""
    other = other_interpreter()
    with python_mirror(tmp_path / "mirror", [other.minor]) as mirror:
        hide_interpreters(tmp_path, monkeypatch)
        for name, value in mirror.variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setenv("UV_PYTHON_BIN_DIR", str(tmp_path / "programs"))
        assert find([other.minor]) is None
        reported: list[str] = []
        assert await interpreters.install(other.minor, reported.append) is None
        assert any(line.startswith("Downloading cpython") for line in reported)
        interpreter = find([other.minor])
        assert interpreter is not None and interpreter.version == other.version
        path = Path(interpreter.path).resolve()
        assert path.is_relative_to(tmp_path / "UV_PYTHON_INSTALL_DIR")
        reason = await interpreters.install("3.99", reported.append)
        assert reason is not None and "3.99" in reason


def test_uv_on_path_is_the_second_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "uv"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert interpreters.uv() == interpreters.wheel_uv() != str(program)
    monkeypatch.setitem(sys.modules, "uv", None)  # as where uv is not installed as a wheel
    assert interpreters.uv() == str(program)
    program.unlink()
    assert interpreters.uv() is None
