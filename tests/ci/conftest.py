"""The local cloud that pipelines train on, in a separate process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ci.owner_shell import OwnerShell
from tests.support.callers import Member
from tpuctl.local_cloud import server_process


@pytest.fixture(scope="module")
def local_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server_process.LocalCloud]:
    home = tmp_path_factory.mktemp("ci-cloud") / "local"
    patch = pytest.MonkeyPatch()
    patch.setenv("TPUCTL_LOCAL_HOME", str(home))
    patch.setenv("TPUCTL_CLOUD", "local")
    cloud = server_process.start(home, pace="instant")
    # As in the printed setup: it enables these APIs before it creates roles.
    apis = {"serviceIds": ["iam.googleapis.com", "cloudresourcemanager.googleapis.com"]}
    path = "/v1/projects/local-project/services:batchEnable"
    Member.owner(cloud).send_ok("POST", path, json=apis)
    yield cloud
    server_process.stop(home)
    patch.undo()


@pytest.fixture
def owner_shell(tmp_path: Path) -> OwnerShell:
    folder = tmp_path / "owner"
    folder.mkdir()
    return OwnerShell(folder)
