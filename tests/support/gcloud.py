"""The real gcloud, and gsutil, configured for a local cloud."""

from __future__ import annotations

import getpass
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.forked_gcloud import forked_gcloud_python
from tests.support.locations import US_ZONE
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.local_cloud.shell_env import environment_for

BILLING = "billingAccounts/010CA1-010CA1-010CA1"  # the local cloud's open billing account
_numbers = itertools.count(1)


def require_gcloud() -> str:
    """Return the program's path. Skips the test if it is not installed, and fails it under CI."""
    program = shutil.which("gcloud")
    if program is None and os.environ.get("CI") == "true":
        pytest.fail("gcloud is not installed, but required under CI: install the Google Cloud CLI")
    if program is None:
        pytest.skip("gcloud is not installed: install the Google Cloud CLI")
    return program


def environment_of(cloud: LocalCloud, project: str, zone: str, folder: Path) -> dict[str, str]:
    """The output of `tpuctl local env` for a user in this folder, with prompts disabled."""
    variables = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    around = {name: value for name, value in variables.items() if not name.startswith("CLOUDSDK_")}
    for name, value in environment_for(cloud, around).items():
        around.pop(name, None)
        if value is not None:
            around[name] = value
    return {
        **around,
        "HOME": str(folder),
        "CLOUDSDK_CORE_PROJECT": project,
        "CLOUDSDK_COMPUTE_ZONE": zone,
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_SHOULD_PROMPT_TO_ENABLE_API": "false",
    }


def forked() -> dict[str, str]:
    """Variables with which commands of gcloud run in processes forked from one with its modules.

    Skips the test if gcloud is not installed, and fails it under CI.
    """
    return {"CLOUDSDK_PYTHON": forked_gcloud_python(require_gcloud())}


class Gcloud:
    """gcloud, configured for one local cloud only.

    gcloud = Gcloud(cloud, tmp_path, project="local-project")
    gcloud.run("compute", "tpus", "tpu-vm", "delete", "bert")
    gcloud.json("projects", "list")[0]["projectId"]
    """

    def __init__(
        self,
        cloud: LocalCloud,
        folder: Path,
        *,
        project: str = "local-project",
        zone: str = US_ZONE,
    ) -> None:
        """`folder` becomes its home for configuration, keys and caches."""
        self.cloud = cloud
        self.project = project
        self.folder = folder
        self.program = require_gcloud()
        folder.mkdir(parents=True, exist_ok=True)
        self.environment = environment_of(cloud, project, zone, folder) | forked()

    def run(
        self,
        *arguments: str,
        check: bool = True,
        seconds: float = 120,
        stdin: str = "",
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command. With `check`, a failed command fails the test with its output."""
        return self._run([self.program, *arguments], check, seconds, stdin, environment)

    def json(self, *arguments: str, **options: Any) -> Any:
        """Return a command's result with `--format=json`."""
        return json.loads(self.run(*arguments, "--format=json", **options).stdout)

    def gsutil(
        self, *arguments: str, check: bool = True, seconds: float = 120, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run gsutil through gcloud storage, which clients without TLS must use."""
        program = str(Path(os.path.realpath(self.program)).with_name("gsutil"))
        return self._run([program, *arguments], check, seconds, stdin, {})

    def make_key(self) -> str:
        """Create the SSH key that gcloud would create; returns its line for metadata."""
        file = self.folder / ".ssh" / "google_compute_engine"
        file.parent.mkdir(mode=0o700)
        command = ["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-C", "", "-f", str(file)]
        subprocess.run(command, check=True, timeout=60)
        kind, key = file.with_suffix(".pub").read_text("ascii").split()[:2]
        user = getpass.getuser()
        return f"{user}:{kind} {key} {user}"

    def _run(
        self,
        command: list[str],
        check: bool,
        seconds: float,
        stdin: str,
        environment: Mapping[str, str],
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command,
            env=self.environment | environment,
            cwd=self.folder,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert "gcloud crashed" not in done.stderr, done.stderr
        if check and done.returncode:
            pytest.fail(f"{' '.join(command[1:])}: exit {done.returncode}\n{done.stderr}")
        return done


def make_project(cloud: LocalCloud, *apis: str, project: str = "", parent: str = "") -> str:
    """Create a project with billing and these APIs enabled ("tpu", "compute"); returns its id.

    It does not use gcloud, for tests of other things.
    """
    project = project or f"lab-{os.getpid()}-{next(_numbers)}"
    asked: list[tuple[str, str, Any]] = [
        ("POST", "/v3/projects", {"projectId": project, **({"parent": parent} if parent else {})}),
        ("PUT", f"/v1/projects/{project}/billingInfo", {"billingAccountName": BILLING}),
    ]
    if apis:
        names = [f"{api}.googleapis.com" for api in apis]
        path = f"/v1/projects/{project}/services:batchEnable"
        asked.append(("POST", path, {"serviceIds": names}))
    with requests.Session() as session:
        session.trust_env = False
        session.headers["Authorization"] = f"Bearer {cloud.token}"
        for verb, path, body in asked:
            answer = session.request(verb, cloud.url + path, json=body, timeout=60)
            assert answer.ok, answer.text
            # Operations are instant at this pace: they are done, or will be in a moment.
            while answer.ok and answer.json().get("done") is False:
                answer = session.get(f"{cloud.url}/v1/{answer.json()['name']}", timeout=60)
    return project
