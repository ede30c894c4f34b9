"""Local clouds for the real gcloud: one without machines, one with real machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.gcloud import Gcloud, make_project, require_gcloud
from tests.support.projects import serving
from tpuctl.local_cloud import server_process

MakeGcloud = Callable[..., Gcloud]


@pytest.fixture(scope="session")
def null_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server_process.LocalCloud]:
    """Everything is created immediately, without machines to log in to."""
    require_gcloud()
    with serving(tmp_path_factory.mktemp("null") / "local") as cloud:
        yield cloud


@pytest.fixture(scope="session")
def machine_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server_process.LocalCloud]:
    """A local cloud with machines to log in to."""
    require_gcloud()
    home = tmp_path_factory.mktemp("machines") / "local"
    cloud = server_process.start(home, pace="instant")
    yield cloud
    server_process.stop(home)


@pytest.fixture
def gcloud(null_cloud: server_process.LocalCloud, tmp_path: Path) -> Gcloud:
    """A user in a new project with Compute Engine and Cloud TPU enabled."""
    project = make_project(null_cloud, "compute", "tpu")
    return Gcloud(null_cloud, tmp_path / "gcloud", project=project)


@pytest.fixture
def bare_gcloud(null_cloud: server_process.LocalCloud, tmp_path: Path) -> Gcloud:
    """A user in a new project with billing and no API enabled."""
    return Gcloud(null_cloud, tmp_path / "gcloud", project=make_project(null_cloud))


@pytest.fixture
def machine_gcloud(machine_cloud: server_process.LocalCloud, tmp_path: Path) -> Gcloud:
    """Like `gcloud`, with machines to log in to."""
    project = make_project(machine_cloud, "compute", "tpu")
    return Gcloud(machine_cloud, tmp_path / "gcloud", project=project)
