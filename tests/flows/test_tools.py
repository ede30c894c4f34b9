"""What jobs bring to their machines is kept in the bucket, from a mirror on loopback."""

from __future__ import annotations

import asyncio
import hashlib
import platform
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.projects import numbers
from tests.support.python_mirror import PythonMirror, python_mirror, unpacked
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.endpoints import Endpoint
from tpuctl.cloud.objects import ObjectStore
from tpuctl.errors import Conflict, Refused
from tpuctl.files import archives_folder
from tpuctl.flows.packages import tools
from tpuctl.flows.packages.tools import ensure_tools, require_available
from tpuctl.interpreters import current
from tpuctl.jobs.requirements.python_archives import python_builds
from tpuctl.jobs.requirements.uv_program import tool_for_uv, uv_path
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import Event, StepFinished, StepProgress, WarningIssued
from tpuctl.model.jobs.installation import Installation, PythonBuild
from tpuctl.model.text.names import TOOLS

ARCHITECTURE = platform.machine()


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
async def store(null_cloud: LocalCloud) -> ObjectStore:
    endpoint = Endpoint("local", null_cloud.url, null_cloud.token)
    client = Cloud(endpoint, "local-project").client("storage")
    name = f"tools-{next(numbers)}"
    await asyncio.to_thread(client.create_bucket, name)
    return ObjectStore(client, name)


@pytest.fixture
def installation(mirror: PythonMirror) -> Installation:
    """What a job brings: this Python, and uv."""
    [build] = python_builds(ARCHITECTURE)
    return Installation(python=build, uv=tool_for_uv(ARCHITECTURE))


def python_of(installation: Installation) -> PythonBuild:
    assert installation.python is not None
    return installation.python


def with_sha256(installation: Installation, sha256: str) -> Installation:
    python = python_of(installation).model_copy(update={"sha256": sha256})
    return installation.model_copy(update={"python": python})


def cached_pythons() -> list[Path]:
    return [*archives_folder().rglob("cpython*/*.tar.gz")]


def warning_of(events: list[Event]) -> str:
    [warning] = [event.diagnostic for event in events if isinstance(event, WarningIssued)]
    return warning.text


async def test_tools_are_stored_once_by_content(
    store: ObjectStore, mirror: PythonMirror, installation: Installation, tmp_path: Path
) -> None:
    events: list[Event] = []
    stored = await ensure_tools(installation, store, events.append)
    [end] = [event for event in events if isinstance(event, StepFinished)]
    version = python_of(installation).version
    assert end.address == "job/tools"
    assert end.because.startswith(f"Python {version} (")
    assert {event.total for event in events if isinstance(event, StepProgress)} - {None}
    objects = {entry.name: entry for entry in await store.list(f"{TOOLS}/")}
    assert len(objects) == len(stored.tools) == 2
    for tool in stored.tools:
        content = await store.get_bytes(
            f"{TOOLS}/{tool.key}/{tool.sha256}.tar.gz", max_bytes=1 << 30
        )
        assert hashlib.sha256(content).hexdigest() == tool.sha256
        (tmp_path / tool.key).write_bytes(content)
    python = unpacked(tmp_path / python_of(stored).key, tmp_path)
    assert subprocess.check_output([python, "-V"], text=True).split() == ["Python", version]
    assert stored.uv is not None
    with tarfile.open(tmp_path / stored.uv.key) as archive:
        assert archive.getnames() == ["uv"]
        member = archive.extractfile("uv")
        assert member is not None
        assert member.read() == Path(uv_path()).read_bytes()

    events.clear()
    mirror.remove_all()
    assert await ensure_tools(installation, store, events.append) == stored
    assert not events
    assert len(mirror.requests) == 1
    assert (
        mirror.bytes_sent
        == objects[f"{TOOLS}/{python_of(stored).key}/{python_of(stored).sha256}.tar.gz"].size
    )


async def test_each_bucket_gets_what_was_downloaded_once(
    store: ObjectStore, mirror: PythonMirror, installation: Installation
) -> None:
    stored = await ensure_tools(installation, store, lambda event: None)
    for entry in await store.list(f"{TOOLS}/"):
        await store.delete(entry.name)
    assert await ensure_tools(installation, store, lambda event: None) == stored
    assert len(mirror.requests) == 1
    # A damaged file of the cache is downloaded again.
    [cached] = cached_pythons()
    cached.write_bytes(b"0" + cached.read_bytes()[1:])
    for entry in await store.list(f"{TOOLS}/"):
        await store.delete(entry.name)
    assert await ensure_tools(installation, store, lambda event: None) == stored
    assert len(mirror.requests) == 2


async def test_age_of_old_tools_is_renewed(
    store: ObjectStore, installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket deletes what is old, and workers do not use it."""
    uv = installation.model_copy(update={"python": None})
    stored = await ensure_tools(uv, store, lambda event: None)
    [before] = await store.list(f"{TOOLS}/")
    assert await ensure_tools(uv, store, lambda event: None) == stored
    assert await store.list(f"{TOOLS}/") == [before]
    monkeypatch.setattr(tools, "RENEWAL_AGE", -tools.RENEWAL_AGE)
    assert await ensure_tools(uv, store, lambda event: None) == stored
    [after] = await store.list(f"{TOOLS}/")
    assert (after.name, after.size) == (before.name, before.size)
    assert after.created > before.created


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("missing", "404 Not Found"),
        ("fail", "503 Service Unavailable"),
        ("truncate", "end of file"),
        ("wrong bytes", "Hash mismatch"),
    ],
)
async def test_what_cannot_be_downloaded_is_left_to_a_machine(
    store: ObjectStore, mirror: PythonMirror, installation: Installation, fault: str, reason: str
) -> None:
    archive = mirror.archive(python_of(installation).version)
    target = archive.readlink()
    if fault == "missing":
        archive.unlink()
    else:
        mirror.fault = fault  # type: ignore[assignment]
    events: list[Event] = []
    stored = await ensure_tools(installation, store, events.append)
    assert stored.python == installation.python
    assert stored.uv is not None
    assert stored.uv.sha256 is not None
    text = warning_of(events)
    python = f"Python {python_of(installation).version}"
    (result,) = (event.because for event in events if isinstance(event, StepFinished))
    assert result.startswith("uv ")
    assert result.endswith(f"; {python} not downloaded")
    assert f"{python}: Failed to install" in text
    assert reason in text
    assert "One of the machines downloads it instead" in text
    assert "\n    export UV_PYTHON_INSTALL_MIRROR=URL" in text
    assert "UV_DEFAULT_INDEX" not in text
    assert not cached_pythons()
    with pytest.raises(Refused, match="they have no external addresses"):
        await ensure_tools(installation, store, events.append, workers_have_internet=False)

    if fault == "missing":
        archive.symlink_to(target)
    mirror.fault = ""
    again = await ensure_tools(installation, store, events.append, workers_have_internet=False)
    assert python_of(again).sha256 == hashlib.sha256(target.read_bytes()).hexdigest()


async def test_password_of_mirror_is_not_shown(
    store: ObjectStore,
    mirror: PythonMirror,
    installation: Installation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables = mirror.mirror_variables
    address = variables["UV_PYTHON_INSTALL_MIRROR"].replace("http://", "http://me:hunter2@")
    for name, value in {**variables, "UV_PYTHON_INSTALL_MIRROR": address}.items():
        monkeypatch.setenv(name, value)
    mirror.remove_all()
    events: list[Event] = []
    await ensure_tools(installation, store, events.append)
    assert "404 Not Found" in warning_of(events)
    assert "hunter2" not in repr(events)


async def test_large_downloads_are_confirmed(
    store: ObjectStore,
    mirror: PythonMirror,
    installation: Installation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tools, "LARGE_BYTES", 1_000_000)
    questions: list[str] = []
    events: list[Event] = []

    def decline(question: str) -> bool:
        questions.append(question)
        return False

    stored = await ensure_tools(installation, store, events.append, may_download=decline)
    version = python_of(installation).version
    assert stored.python == installation.python
    [question] = questions
    assert question.startswith(f"Python {version}, which the job brings, has ")
    assert "not confirmed" in warning_of(events)
    assert not cached_pythons()
    stored = await ensure_tools(
        installation, store, events.append, may_download=lambda question: True
    )
    assert python_of(stored).sha256 == mirror.sha256(version)


async def test_later_attempts_get_the_same_build_or_none(
    store: ObjectStore, installation: Installation, mirror: PythonMirror
) -> None:
    stored = await ensure_tools(installation, store, lambda event: None)
    for entry in await store.list(f"{TOOLS}/"):
        await store.delete(entry.name)
    other = f"{TOOLS}/{python_of(stored).key}/{'1' * 64}.tar.gz"
    await store.put_bytes(other, b"another content")
    assert await ensure_tools(stored, store, lambda event: None) == stored
    recorded = with_sha256(installation, "0" * 64)
    with pytest.raises(Conflict, match=f"{python_of(stored).key} now has the checksum"):
        await ensure_tools(recorded, store, lambda event: None)
    assert await ensure_tools(with_sha256(installation, "1" * 64), store, lambda event: None)


async def test_cancelled_download_ends_at_once(
    store: ObjectStore, mirror: PythonMirror, installation: Installation
) -> None:
    """As by Ctrl-C, while the mirror hangs."""
    mirror.fault = "hang"
    task = asyncio.create_task(ensure_tools(installation, store, lambda event: None))
    await asyncio.to_thread(mirror.is_hanging.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)
    assert not cached_pythons()
    mirror.fault = ""
    stored = await ensure_tools(installation, store, lambda event: None)
    assert python_of(stored).sha256 == mirror.sha256(python_of(stored).version)


UPLOAD = """
import asyncio, sys
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.endpoints import Endpoint
from tpuctl.cloud.objects import ObjectStore
from tpuctl.flows.packages.tools import ensure_tools
from tpuctl.model.jobs.installation import Installation

class Reporting(ObjectStore):
    async def put_file(self, name, path, *, progress, **options):
        def report(done, total):
            print(done, total, flush=True)
            progress(done, total)
        return await super().put_file(name, path, progress=report, **options)

url, token, bucket = sys.argv[1:]
client = Cloud(Endpoint("local", url, token), "local-project").client("storage")
installation = Installation.model_validate_json(sys.stdin.read())
asyncio.run(ensure_tools(installation, Reporting(client, bucket), lambda event: None))
"""


@pytest.mark.parametrize("reports", [1, 2, 5])
async def test_killed_upload_leaves_nothing_half(
    null_cloud: LocalCloud, store: ObjectStore, installation: Installation, reports: int
) -> None:
    """At these numbers of progress reports; the next command continues."""
    arguments = [sys.executable, "-c", UPLOAD, null_cloud.url, null_cloud.token, store.name]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(installation.model_dump_json())
        process.stdin.close()
        for _ in range(reports):
            assert process.stdout.readline(), "it ended before"
        process.kill()
    for entry in await store.list(f"{TOOLS}/"):
        content = await store.get_bytes(entry.name, max_bytes=1 << 30)
        assert hashlib.sha256(content).hexdigest() in entry.name
    stored = await ensure_tools(installation, store, lambda event: None)
    assert len(await store.list(f"{TOOLS}/")) == len(stored.tools) == 2


async def test_machines_without_internet_are_not_created_for_what_nobody_has(
    mirror: PythonMirror, installation: Installation
) -> None:
    await require_available(installation)
    for archive in cached_pythons():
        archive.unlink()
    mirror.fault = "fail"
    with pytest.raises(Refused, match="no external addresses"):
        await require_available(installation)
