"""Interpreters on PATH, in pyenv, in uv's folder, or downloaded by uv."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import platform
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http_server import serving_http
from tests.support.prerequisites import hide_interpreters, other_interpreter, skip_or_fail
from tpuctl import interpreters
from tpuctl.interpreters import Interpreter, current, find, or_list

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


async def test_install_requires_uv(empty: Path) -> None:
    assert await interpreters.install("3.11", lambda _: None) == "uv is not installed"


# uv itself, with its list of downloads and a mirror on loopback ---------------------------------


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "mirror"
    folder.mkdir()
    handler = functools.partial(Quiet, directory=str(folder))
    with serving_http(handler) as server:
        yield f"http://127.0.0.1:{server.server_port}"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        """Do not log."""


def offer(other: Interpreter, folder: Path, url: str) -> Path:
    """Put an archive of an interpreter into a mirror's folder; returns uv's list of downloads."""
    prefix = Path(other.path).resolve().parent.parent
    archive = folder / "python.tar.gz"
    left_out = ("site-packages", "test", "idlelib", "__pycache__")

    def without_extras(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        parts = entry.name.split("/")
        is_out = entry.name.endswith(".a") or not {*left_out}.isdisjoint(parts)
        return None if is_out else entry

    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        for name in ("bin", "lib"):
            packed.add(prefix / name, f"python/{name}", filter=without_extras)
    major, minor, patch = map(int, other.version.split("."))
    machine = platform.machine()
    row = {
        "name": "cpython",
        "arch": {"family": machine, "variant": None},
        "os": "linux",
        "libc": "gnu",
        "major": major,
        "minor": minor,
        "patch": patch,
        "prerelease": "",
        "url": f"{url}/{archive.name}",
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "variant": None,
        "build": None,
    }
    downloads = folder / "downloads.json"
    downloads.write_text(json.dumps({f"cpython-{other.version}-linux-{machine}-gnu": row}))
    return downloads


def uv_program() -> Path:
    """uv itself, which the development packages install next to the interpreter of the tests."""
    return (Path(sys.executable).parent / "uv").resolve(strict=True)


@pytest.mark.soak
async def test_uv_downloads_interpreter(
    tmp_path: Path, mirror: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = uv_program()
    other = other_interpreter()
    if Path(other.path).resolve().is_relative_to("/usr/bin"):
        skip_or_fail("the other Python cannot be copied, since it is the system's")
    downloads = offer(other, tmp_path / "mirror", mirror)
    hide_interpreters(tmp_path, monkeypatch)
    (tmp_path / "PATH" / "uv").symlink_to(program)
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS_JSON_URL", str(downloads))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_PYTHON_BIN_DIR", str(tmp_path / "programs"))
    assert find([other.minor]) is None
    reported: list[str] = []
    assert await interpreters.install(other.minor, reported.append) is None
    assert any(line.startswith("Downloading cpython") for line in reported)
    interpreter = find([other.minor])
    assert interpreter is not None and interpreter.version == other.version
    assert Path(interpreter.path).resolve().is_relative_to(tmp_path / "UV_PYTHON_INSTALL_DIR")

    downloads.write_text("{}")
    reason = await interpreters.install("3.99", reported.append)
    assert reason is not None and "3.99" in reason
