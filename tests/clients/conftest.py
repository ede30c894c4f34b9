"""Third-party programs in separate environments, in a shell configured by `tpuctl local env`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.api_core.client_options import ClientOptions
from google.cloud import storage
from google.oauth2.credentials import Credentials

from tests.support.gcloud import environment_of, make_project
from tests.support.locations import US_ZONE
from tests.support.locked_environment import locked_node_modules, locked_python
from tests.support.required_programs import require_programs
from tpuctl.local_cloud import server_process

REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements" / "clients"


def _compute() -> Any:
    """Google's client, whose import takes seconds: not while other tests are collected."""
    from google.cloud import compute_v1

    return compute_v1


@dataclass(frozen=True)
class Shell:
    """A user's shell with a separate home and project, configured for the local cloud."""

    cloud: server_process.LocalCloud
    project: str
    home: Path
    variables: dict[str, str]

    def run(
        self,
        *command: str | Path,
        check: bool = True,
        seconds: float = 300,
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the home folder. With `check`, a failure fails the test."""
        done = subprocess.run(
            [str(part) for part in command],
            env=self.variables | variables,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if check and done.returncode:
            command_text = " ".join(str(part)[:60] for part in command[:6])
            pytest.fail(f"{command_text}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def write(self, name: str, text: str) -> Path:
        file = self.home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
        return file


@dataclass(frozen=True)
class Google:
    """A project as seen by Google's clients."""

    cloud: server_process.LocalCloud
    project: str

    def _options(self) -> dict[str, Any]:
        options = ClientOptions(api_endpoint=self.cloud.url)
        return {"credentials": Credentials(self.cloud.token), "client_options": options}

    def instances(self, zone: str = US_ZONE) -> list[Any]:
        client = _compute().InstancesClient(transport="rest", **self._options())
        return list(client.list(project=self.project, zone=zone))

    def disks(self, zone: str = US_ZONE) -> list[str]:
        client = _compute().DisksClient(transport="rest", **self._options())
        return [disk.name for disk in client.list(project=self.project, zone=zone)]

    def nodes(self, zone: str = US_ZONE) -> list[Any]:
        from google.cloud import tpu_v2

        client = tpu_v2.TpuClient(transport="rest", **self._options())
        return list(client.list_nodes(parent=f"projects/{self.project}/locations/{zone}"))

    def bucket_names(self) -> list[str]:
        client = storage.Client(project=self.project, **self._options())
        return [bucket.name for bucket in client.list_buckets()]

    def content(self, bucket: str, name: str) -> bytes:
        client = storage.Client(project=self.project, **self._options())
        content: bytes = client.bucket(bucket).blob(name).download_as_bytes()
        return content

    def remains(self, *zones: str) -> list[str]:
        """The project's resources that cost money."""
        names = self.bucket_names()
        for zone in zones or (US_ZONE,):
            names += [instance.name for instance in self.instances(zone)]
            names += [node.name for node in self.nodes(zone)]
            names += self.disks(zone)
        return names


@pytest.fixture(scope="session")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server_process.LocalCloud]:
    """A local cloud with machines, shared by all tests."""
    home = tmp_path_factory.mktemp("cloud")
    cloud = server_process.start(home, pace="instant")
    yield cloud
    server_process.stop(home)


@pytest.fixture
def google(cloud: server_process.LocalCloud) -> Google:
    """A new project with billing, Compute Engine and Cloud TPU enabled."""
    return Google(cloud, make_project(cloud, "compute", "tpu", "iam", "cloudresourcemanager"))


@pytest.fixture
def shell(google: Google, tmp_path: Path) -> Shell:
    """A user's shell for that project."""
    variables = environment_of(google.cloud, google.project, US_ZONE, tmp_path)
    variables["GOOGLE_CLOUD_PROJECT"] = google.project
    return Shell(google.cloud, google.project, tmp_path, variables)


@pytest.fixture(scope="session")
def programs() -> Callable[[str], Path]:
    """The folder of the programs that a client's lock file installs, including `python`."""
    return lambda name: locked_python(REQUIREMENTS / f"{name}.lock").parent


@pytest.fixture(scope="session")
def node_modules() -> Path:
    require_programs("node", "npm")
    return locked_node_modules(REQUIREMENTS / "node")
