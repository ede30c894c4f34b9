"""Builds of Python that uv knows, and their archives in the user's cache."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import tarfile
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from tests.support.http_server import QuietHandler, serving_http
from tests.support.python_mirror import PythonMirror, python_mirror
from tpuctl.errors import Usage
from tpuctl.files import archives_folder
from tpuctl.jobs.requirements.python_archives import python_builds
from tpuctl.jobs.requirements.tool_archives import LargeDownload, ToolUnavailable, tool_archive
from tpuctl.jobs.requirements.uv_program import (
    UvFailed,
    run_uv,
    tool_for_uv,
    without_passwords,
)
from tpuctl.model.jobs.installation import PythonBuild

ARCHITECTURE = platform.machine()
OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}.get(ARCHITECTURE, "x86_64")
FETCH = """
import asyncio, sys
from tpuctl.jobs.requirements.python_archives import python_builds
from tpuctl.jobs.requirements.tool_archives import tool_archive

async def fetch():
    async with tool_archive(python_builds(sys.argv[1])[0]) as archive:
        print(archive.path)

asyncio.run(fetch())
"""


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tpuctl's cache is empty."""
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")  # their delays


def fetching(architecture: str = ARCHITECTURE) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, architecture],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def files() -> list[str]:
    """What the cache has, apart from locks."""
    return sorted(
        path.relative_to(archives_folder()).as_posix()
        for path in archives_folder().rglob("*")
        if path.is_file() and path.suffix != ".lock"
    )


def test_builds_are_listed_the_newest_first(pythons: PythonMirror) -> None:
    assert [build.minor for build in python_builds(ARCHITECTURE)] == ["3.13", "3.12"]
    [_, build] = python_builds(ARCHITECTURE)
    assert build == PythonBuild(
        key=pythons.key("3.12"),
        version=build.version,
        request=f"cpython-{build.version}-linux-{ARCHITECTURE}-gnu",
    )
    assert python_builds(OTHER) == []


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_uv_knows_builds_of_both_architectures(
    architecture: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of uv's own list, which needs no network. Settings of a project do not matter."""
    monkeypatch.setenv("UV_NO_MANAGED_PYTHON", "1")
    (tmp_path / "pyproject.toml").write_text("[tool.uv\n")
    (tmp_path / ".python-version").write_text("nonsense\n")
    monkeypatch.chdir(tmp_path)
    builds = python_builds(architecture)
    assert {build.request.split("-")[3] for build in builds} == {architecture}
    versions = [tuple(map(int, build.version.split("."))) for build in builds]
    assert versions == sorted(set(versions), reverse=True)
    assert {"3.10", "3.11", "3.12", "3.13"} <= {build.minor for build in builds}
    releases = [build.key.removeprefix(f"{build.request}-") for build in builds]
    assert all(len(release) == 8 and release.isdigit() for release in releases)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("missing.json", None, "No such file"),
        ("words.json", "words", "expected value at line 1"),
    ],
)
def test_unreadable_list_is_reported(
    name: str, content: str | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS_JSON_URL", str(path))
    with pytest.raises(Usage, match="UV_PYTHON_DOWNLOADS_JSON_URL: .*" + name) as raised:
        python_builds(ARCHITECTURE)
    assert reason in raised.value.diagnostics[0].detail


async def test_archive_is_as_the_mirror_has_it(pythons: PythonMirror) -> None:
    build = python_builds(ARCHITECTURE)[0]
    sizes: list[tuple[int, int]] = []
    async with tool_archive(build, lambda done, total: sizes.append((done, total))) as archive:
        assert archive.path.read_bytes() == pythons.archive(build.version).read_bytes()
        assert archive.path == archives_folder() / build.key / f"{archive.sha256}.tar.gz"
    assert archive.sha256 == pythons.sha256(build.version)
    assert sizes[0][0] == 0
    assert sizes[0][1] == pytest.approx(archive.size, rel=0.01)


async def test_archive_of_another_architecture_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its programs cannot run here."""
    with python_mirror(tmp_path / "mirror", ["3.12"], [OTHER]) as mirror:
        for name, value in mirror.mirror_variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")  # is about this computer's own
        [build] = python_builds(OTHER)
        async with tool_archive(build) as archive:
            assert archive.sha256 == mirror.sha256("3.12", OTHER)


async def test_large_download_ends(pythons: PythonMirror) -> None:
    build = python_builds(ARCHITECTURE)[0]
    with pytest.raises(LargeDownload) as raised:
        async with tool_archive(build, max_bytes=1000):
            pass
    assert raised.value.size == pytest.approx(
        pythons.archive(build.version).stat().st_size, rel=0.01
    )
    assert files() == []


async def test_unwritable_cache_is_reported(pythons: PythonMirror) -> None:
    build = python_builds(ARCHITECTURE)[0]
    (archives_folder() / build.key).write_text("a file")
    with pytest.raises(ToolUnavailable, match=rf"Python {build.version}: {archives_folder()}"):
        async with tool_archive(build):
            pass


async def test_other_build_of_a_version_is_not_taken(pythons: PythonMirror) -> None:
    """A later uv may have one instead of that of a job's record."""
    build = python_builds(ARCHITECTURE)[0]
    before = build.model_copy(update={"key": f"{build.request}-20240101"})
    reason = f"no build {before.key}; it has {build.key} instead"
    with pytest.raises(ToolUnavailable, match=rf"Python {build.version}: uv .* has {reason}"):
        async with tool_archive(before):
            pass
    request = f"cpython-3.12.99-linux-{ARCHITECTURE}-gnu"
    unknown = PythonBuild(key=f"{request}-20261110", version="3.12.99", request=request)
    with pytest.raises(ToolUnavailable, match=rf"Python 3\.12\.99: .* no build {unknown.key}$"):
        async with tool_archive(unknown):
            pass
    assert files() == []
    assert pythons.requests == []


def test_two_programs_download_once(pythons: PythonMirror) -> None:
    programs = [fetching(), fetching()]
    printed = {program.communicate(timeout=60)[0].strip() for program in programs}
    [file] = files()
    assert printed == {str(archives_folder() / file)}
    assert len(pythons.requests) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ended_download_leaves_nothing_that_is_used(
    pythons: PythonMirror, number: signal.Signals
) -> None:
    pythons.fault = "hang"
    with fetching() as program:
        assert pythons.is_hanging.wait(60)
        program.send_signal(number)
        program.communicate(timeout=20)
        assert program.returncode != 0
    assert not [name for name in files() if name.count("/") == 1]
    if number == signal.SIGINT:
        assert files() == []
    pythons.fault = ""
    with fetching() as program:
        path = Path(program.communicate(timeout=60)[0].strip())
    assert files() == [path.relative_to(archives_folder()).as_posix()]
    build = python_builds(ARCHITECTURE)[0]
    assert path.name == f"{pythons.sha256(build.version)}.tar.gz"


@pytest.mark.soak
@pytest.mark.parametrize("seconds", [0.2, 0.4, 0.6, 0.8, 1.0, 1.3])
def test_killed_download_is_whole_or_missing(pythons: PythonMirror, seconds: float) -> None:
    program = fetching()
    try:
        program.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)
        program.communicate()
    checksum = pythons.sha256("3.13")
    assert {name.rpartition("/")[2] for name in files() if name.count("/") == 1} <= {
        f"{checksum}.tar.gz"
    }
    with fetching() as program:
        path = Path(program.communicate(timeout=60)[0].strip())
    assert path.read_bytes() == pythons.archive("3.13").read_bytes()


class QuietFiles(QuietHandler, SimpleHTTPRequestHandler):
    """Serves the files of a folder."""


def uv_wheel(folder: Path, version: str, program: bytes) -> None:
    """A wheel of uv for the other architecture, in the folder that an index has for uv."""
    info = f"uv-{version}.dist-info"
    tag = f"py3-none-manylinux_2_17_{OTHER}.manylinux2014_{OTHER}"
    files = {
        f"uv-{version}.data/scripts/uv": program,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: uv\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    folder.mkdir(parents=True)
    name = f"uv-{version}-{tag}.whl"
    (folder / "index.html").write_text(f'<a href="{name}">{name}</a>')
    with zipfile.ZipFile(folder / name, "w") as wheel:
        for member, content in {**files, f"{info}/RECORD": record.encode()}.items():
            wheel.writestr(member, content)


async def test_uv_of_another_architecture_is_that_of_its_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    tool = tool_for_uv(OTHER)
    assert tool.key == f"uv-{tool.version}-{OTHER}"
    with serving_http(partial(QuietFiles, directory=str(tmp_path / "index"))) as server:
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(ToolUnavailable, match=rf"^Download failed: uv {tool.version}: .*found"):
            async with tool_archive(tool):
                pass
        uv_wheel(tmp_path / "index" / "uv", tool.version, b"a program")
        async with tool_archive(tool) as archive:
            with tarfile.open(archive.path) as members:
                [member] = members
                assert (member.name, member.mode) == ("uv", 0o755)
                content = members.extractfile(member)
                assert content is not None
                assert content.read() == b"a program"


async def test_archive_of_uv_is_the_same_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checksums = set()
    for name in ("first", "second"):
        monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path / name))
        async with tool_archive(tool_for_uv(ARCHITECTURE)) as archive:
            checksums.add(archive.sha256)
    assert len(checksums) == 1


def test_passwords_are_removed() -> None:
    text = "error: Failed to fetch: `https://me:hunter2@host/simple/uv/?token=abc` (os error 1)"
    assert without_passwords(text) == (
        "error: Failed to fetch: `https://host/simple/uv/` (os error 1)"
    )


def test_error_of_uv_is_one_line() -> None:
    with pytest.raises(UvFailed) as raised:
        run_uv(["python", "find", "--no-project", "--offline", "cpython@3.99"])
    assert str(raised.value).startswith("uv python find failed: No interpreter found")
    assert "\n" not in str(raised.value)
