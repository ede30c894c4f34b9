"""What jobs bring to their machines is kept in the bucket, from a mirror on loopback."""

from __future__ import annotations

import hashlib
import os
import platform
import signal
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.support.projects import provision
from tests.support.python_mirror import PythonMirror, python_mirror
from tpuctl.api import Tpuctl
from tpuctl.cloud.objects import ObjectStore
from tpuctl.errors import Conflict, Refused
from tpuctl.flows.packages.tools import ensure_tools
from tpuctl.interpreters import current
from tpuctl.jobs.requirements.python_archives import archives_folder, python_builds
from tpuctl.jobs.requirements.uv_program import tool_for_uv, uv_path
from tpuctl.model.events import Event, StepFinished, WarningIssued
from tpuctl.model.jobs.installation import Installation, PythonBuild
from tpuctl.model.text.names import TOOLS

ARCHITECTURE = platform.machine()
FETCH = """
import asyncio, sys
from tpuctl.jobs.requirements.python_archives import fetch_python, python_builds
[build] = python_builds(sys.argv[1])
print(asyncio.run(fetch_python(build, lambda size: None)))
"""


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PythonMirror]:
    """A mirror of this Python; tpuctl's cache is empty."""
    with python_mirror(tmp_path / "mirror", [current().minor]) as served:
        for name, value in served.variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path / "config"))
        monkeypatch.setenv("UV_HTTP_RETRIES", "0")  # their delays
        yield served


@pytest.fixture
async def store(make_stub_stack: Callable[..., Tpuctl]) -> AsyncIterator[ObjectStore]:
    stack = make_stub_stack()
    await provision(stack)
    yield ObjectStore(stack.cloud.client("storage"), stack.stack.bucket)
    await stack.down(delete_bucket=True)


@pytest.fixture
def wanted(mirror: PythonMirror) -> Installation:
    [build] = python_builds(ARCHITECTURE)
    return Installation(python=build, uv=tool_for_uv(ARCHITECTURE))


def python_of(installation: Installation) -> PythonBuild:
    assert installation.python is not None
    return installation.python


async def test_builds_are_stored_once_by_content(
    store: ObjectStore, mirror: PythonMirror, wanted: Installation, tmp_path: Path
) -> None:
    events: list[Event] = []
    stored = await ensure_tools(wanted, store, events.append)
    assert [event.address for event in events if isinstance(event, StepFinished)] == [
        "job/tools"
    ] * 2
    objects = {entry.name: entry for entry in await store.list(f"{TOOLS}/")}
    assert len(objects) == len(stored.tools) == 2
    for tool in stored.tools:
        content = await store.get_bytes(
            f"{TOOLS}/{tool.key}/{tool.sha256}.tar.gz", max_bytes=1 << 30
        )
        assert hashlib.sha256(content).hexdigest() == tool.sha256
        (tmp_path / tool.key).write_bytes(content)
    with tarfile.open(tmp_path / python_of(stored).key) as archive:
        archive.extractall(tmp_path, filter="tar")
    version = subprocess.check_output([tmp_path / "python/bin/python3", "-V"], text=True)
    assert version.split() == ["Python", python_of(stored).version]
    assert stored.uv is not None
    with tarfile.open(tmp_path / stored.uv.key) as archive:
        member = archive.extractfile("uv")
        assert member is not None
        assert member.read() == Path(uv_path()).read_bytes()

    events.clear()
    mirror.remove_all()
    assert await ensure_tools(wanted, store, events.append) == stored
    assert not events
    assert len(mirror.requests) == 1


async def test_each_bucket_gets_what_this_computer_downloaded_once(
    store: ObjectStore, mirror: PythonMirror, wanted: Installation
) -> None:
    stored = await ensure_tools(wanted, store, lambda event: None)
    for entry in await store.list(f"{TOOLS}/"):
        await store.delete(entry.name)
    assert await ensure_tools(wanted, store, lambda event: None) == stored
    assert len(mirror.requests) == 1


@pytest.mark.parametrize("damage", ["missing", "truncated", "other"])
async def test_what_cannot_be_downloaded_is_left_to_a_machine(
    store: ObjectStore, mirror: PythonMirror, wanted: Installation, damage: str
) -> None:
    archive = mirror.archive(python_of(wanted).version)
    content = archive.read_bytes()
    archive.unlink()
    if damage != "missing":
        archive.write_bytes(content[:-1000] if damage == "truncated" else b"0" + content[1:])
    events: list[Event] = []
    stored = await ensure_tools(wanted, store, events.append)
    assert stored.python == wanted.python
    assert stored.uv is not None
    assert stored.uv.sha256 is not None
    [warning] = [event.diagnostic for event in events if isinstance(event, WarningIssued)]
    assert warning.summary == f"Cannot download Python {python_of(wanted).version} here"
    assert "UV_PYTHON_INSTALL_MIRROR" in warning.hint
    assert not [*archives_folder().glob("cpython*.tar.gz")]
    with pytest.raises(Refused):
        await ensure_tools(wanted, store, events.append, have_internet=False)

    archive.unlink(missing_ok=True)
    archive.write_bytes(content)
    again = await ensure_tools(wanted, store, events.append)
    assert python_of(again).sha256 == hashlib.sha256(content).hexdigest()


async def test_later_attempts_never_get_another_build(
    store: ObjectStore, wanted: Installation
) -> None:
    recorded = python_of(wanted).model_copy(update={"sha256": "0" * 64})
    with pytest.raises(Conflict, match="Another build"):
        await ensure_tools(
            wanted.model_copy(update={"python": recorded}), store, lambda event: None
        )


def test_two_programs_download_once(mirror: PythonMirror, wanted: Installation) -> None:
    command = [sys.executable, "-c", FETCH, ARCHITECTURE]
    programs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = {program.communicate(timeout=60)[0] for program in programs}
    assert printed == {f"{archives_folder() / python_of(wanted).key}.tar.gz\n"}
    assert len(mirror.requests) == 1


def test_killed_download_leaves_nothing_that_is_used(
    mirror: PythonMirror, wanted: Installation
) -> None:
    """Killed at several times; the archive is whole, or missing."""
    expected = mirror.archive(python_of(wanted).version).read_bytes()
    path = archives_folder() / f"{python_of(wanted).key}.tar.gz"
    for seconds in (0.3, 0.5, 0.7):
        program = subprocess.Popen(
            [sys.executable, "-c", FETCH, ARCHITECTURE],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            program.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()
        assert not path.exists() or path.read_bytes() == expected
        path.unlink(missing_ok=True)
    subprocess.run([sys.executable, "-c", FETCH, ARCHITECTURE], check=True, capture_output=True)
    assert path.read_bytes() == expected


def test_builds_of_another_architecture_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UV_PYTHON_DOWNLOADS_JSON_URL", raising=False)
    for architecture in ("x86_64", "aarch64"):
        builds = python_builds(architecture)
        assert {build.request.split("-")[3] for build in builds} == {architecture}
        minors = [build.minor for build in builds]
        assert {"3.10", "3.11", "3.12", "3.13"} <= {*minors}
        assert all(build.key.rpartition("-")[2].isdigit() for build in builds)
