"""A local cloud shared by all flow tests, which use it over HTTP and gRPC like users."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_cli import run_tpuctl
from tests.support.projects import Project, enable_apis, numbers, serving, use_cloud
from tpuctl.api import Tpuctl
from tpuctl.flows.stack import permissions
from tpuctl.local_cloud import remote_control, server_process
from tpuctl.model.events import Event


@pytest.fixture(scope="session")
def local_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server_process.LocalCloud]:
    """A running local cloud with pace `instant`. Its machines have the Python of base runtimes:
    with another, each log would start with a note."""
    home = tmp_path_factory.mktemp("cloud") / "local"
    patch = pytest.MonkeyPatch()
    patch.setenv("TPUCTL_LOCAL_HOME", str(home))
    patch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    patch.setenv("TPUCTL_CLOUD", "local")
    with patch.context() as of_server:
        of_server.setenv("TPUCTL_LOCAL_NOTES", "off")
        cloud = server_process.start(home, pace="instant")
    enable_apis(cloud)
    yield cloud
    server_process.stop(home)
    patch.undo()


@pytest.fixture
async def reset_cloud(
    local_cloud: server_process.LocalCloud,
) -> AsyncIterator[server_process.LocalCloud]:
    """The local cloud; faults and pace are reset after the test."""
    yield local_cloud
    await asyncio.to_thread(remote_control.remove_all_faults, local_cloud)
    await asyncio.to_thread(remote_control.change_settings, local_cloud, pace="instant")


@pytest.fixture
async def one_device(
    reset_cloud: server_process.LocalCloud,
) -> AsyncIterator[server_process.LocalCloud]:
    """The local cloud, with one device for each worker: sixteen share few processors badly."""
    await asyncio.to_thread(remote_control.change_settings, reset_cloud, devices=1)
    yield reset_cloud
    await asyncio.to_thread(remote_control.change_settings, reset_cloud, devices=0)


@pytest.fixture(scope="session")
def null_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server_process.LocalCloud]:
    """A local cloud without real machines: everything is created immediately, logins fail."""
    with serving(tmp_path_factory.mktemp("null") / "local") as cloud:
        enable_apis(cloud)
        yield cloud


@pytest.fixture
def cloud(null_cloud: server_process.LocalCloud) -> Iterator[server_process.LocalCloud]:
    """Like `null_cloud`; faults are removed after the test."""
    yield null_cloud
    remote_control.remove_all_faults(null_cloud)


@pytest.fixture
def project(
    null_cloud: server_process.LocalCloud,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Project:
    """A new project on `null_cloud`; commands in other processes use that cloud too."""
    return Project.spoken_to(null_cloud, tmp_path, monkeypatch)


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def bert_job(local_cloud: server_process.LocalCloud, tmp_path: Path) -> Path:
    """The folder of the bundled job, as `tpuctl init` writes it."""
    done = run_tpuctl("--cloud", "local", "init", "--folder", str(tmp_path), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    return tmp_path / "bert-pretraining"


@pytest.fixture
def make_stack(
    local_cloud: server_process.LocalCloud, tmp_path: Path, events: list[Event]
) -> Callable[..., Tpuctl]:
    """Writes a stack file and opens it, by default with a unique name.

    By default, machines have only Python, so that they start immediately without downloads.
    """
    return _stack_factory(local_cloud, tmp_path, events)


@pytest.fixture
def make_stub_stack(
    null_cloud: server_process.LocalCloud,
    tmp_path: Path,
    events: list[Event],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Tpuctl]:
    """Like `make_stack`, with stub machines: to be brought up with `provision`."""
    use_cloud(null_cloud, monkeypatch)
    return _stack_factory(null_cloud, tmp_path, events)


def _stack_factory(
    cloud: server_process.LocalCloud, folder: Path, events: list[Event]
) -> Callable[..., Tpuctl]:
    def make(
        *,
        name: str = "",
        type_name: str = "v2-8",
        runtime: str = "tpu-ubuntu2204-base",
        zone: str = "us-central1-b",
        extra: str = "",
        emit: Callable[[Event], None] | None = None,
    ) -> Tpuctl:
        name = name or f"stack-{next(numbers)}"
        if "us-central2-b" in zone:  # the zone of v4, which is closed by default
            remote_control.change_settings(cloud, zones={"us-central2-b": True})
        path = folder / f"{name}-{next(numbers)}" / "tpuctl.yaml"
        path.parent.mkdir()
        path.write_text(
            f"stack: {name}\nproject: {{id: local-project}}\n"
            f"tpu: {{type: {type_name}, runtime: {runtime}, zones: [{zone}]}}\n{extra}",
            "utf-8",
        )
        return Tpuctl(path, cloud="local", emit=emit or events.append)

    return make


@pytest.fixture
async def stack(make_stack: Callable[..., Tpuctl]) -> AsyncIterator[Tpuctl]:
    """A stack that is up, and is deleted after the test."""
    stack = make_stack()
    await stack.up()
    yield stack
    await stack.down(delete_bucket=True)


@pytest.fixture
def startup_scripts(local_cloud: server_process.LocalCloud) -> None:
    """Skip the test where machines run none."""
    if not local_cloud.runs_startup_scripts:
        pytest.skip(f"machines have no startup scripts here: {local_cloud.isolation}")


@pytest.fixture
def no_permission_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the permission check, so that the cloud itself denies the request."""

    async def no_missing_permissions(*_: Any) -> list[Any]:
        return []

    monkeypatch.setattr(permissions, "missing_permissions", no_missing_permissions)
