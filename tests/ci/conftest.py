"""The local cloud that pipelines train on, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from members import Member

sys.path.append(str(Path(__file__).parent))

from tpuctl.emulator import control

TPUCTL = [sys.executable, "-m", "tpuctl"]


@dataclass(frozen=True)
class Desk:
    """Where somebody types commands, as the local cloud's owner."""

    folder: Path

    def type(self, *arguments: str, folder: Path | None = None) -> tuple[int, str, str]:
        done = subprocess.run(
            [*TPUCTL, *arguments],
            cwd=folder or self.folder,
            env={**os.environ, "TPUCTL_CONFIG_HOME": str(self.folder / "own")},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    def role(self, folder: Path) -> str:
        """What a pipeline of the stack there may do."""
        code, out, told = self.type("doctor", "--role", folder=folder)
        assert code == 0, told
        return out

    def stop_soon(self, folder: Path) -> None:
        """Stop the stack's latest job, while something else goes on here."""
        threading.Thread(target=self.type, args=("stop",), kwargs={"folder": folder}).start()

    def answer(self, *arguments: str, folder: Path | None = None) -> Any:
        code, out, told = self.type(*arguments, "--json", folder=folder)
        assert code == 0, out + told
        return json.loads(out)["data"]


@pytest.fixture(scope="module")
def local_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[control.LocalCloud]:
    home = tmp_path_factory.mktemp("ci-cloud") / "local"
    patch = pytest.MonkeyPatch()
    patch.setenv("TPUCTL_LOCAL_HOME", str(home))
    patch.setenv("TPUCTL_CLOUD", "local")
    cloud = control.start(home, pace="instant")
    # As the setup that is printed has it: there are no roles before.
    apis = {"serviceIds": ["iam.googleapis.com", "cloudresourcemanager.googleapis.com"]}
    path = "/v1/projects/local-project/services:batchEnable"
    Member.owner(cloud).must("POST", path, json=apis)
    yield cloud
    control.stop(home)
    patch.undo()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    folder = tmp_path / "desk"
    folder.mkdir()
    return Desk(folder)
