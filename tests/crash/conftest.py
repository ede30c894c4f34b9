"""A local cloud without machines in a separate process, and programs that can be killed."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from tests.crash import killable_programs
from tests.support import fork_server
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud

SERVE = Path(__file__).resolve().parents[1] / "support" / "serve_null.py"
_numbers = itertools.count(1)
fork_server.prepare("tests.crash.preloaded")


@pytest.fixture(scope="session")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    home = tmp_path_factory.mktemp("crash") / "cloud"
    # The fork server keeps the environment that it starts with.
    patch = pytest.MonkeyPatch()
    patch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path_factory.mktemp("crash-config")))
    command = [sys.executable, str(SERVE), str(home), "instant"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port, token = server.stdout.readline().split()
        url = f"http://127.0.0.1:{port}"
        try:
            yield LocalCloud(url, token, int(port), server.pid, home, "instant")
        finally:
            server.terminate()
            server.wait(20)
            patch.undo()


@dataclass
class Stage:
    """A stack file, and the programs run with it."""

    cloud: LocalCloud
    stack_file: Path
    project: str
    stack: str
    _running: list[BaseProcess] = field(default_factory=list)

    def start(self, work: Callable[..., None], **options: Any) -> BaseProcess:
        """Start `up` or `down` in a separate process."""
        arguments = (str(self.stack_file), self.cloud.url, self.cloud.token, options)
        process = fork_server.context.Process(target=work, args=arguments, daemon=True)
        process.start()
        self._running.append(process)
        return process

    def run(self, work: Callable[..., None], **options: Any) -> int:
        """Run it to completion; return its exit code."""
        process = self.start(work, **options)
        process.join(180)
        assert process.exitcode is not None, f"{work.__name__} does not end"
        return process.exitcode

    def kill_at(self, work: Callable[..., None], number: int, *, after: bool) -> str:
        """Kill it during its Nth change; return the call's method, "" if it exited before.

        `after` kills it once the cloud has acted but not yet answered.
        """
        with self.fault("hold", method="mutating", at=number, hold_response=after) as fault:
            process = self.start(work)
            while process.is_alive():
                waiting = remote_control.fault(self.cloud, fault).get("held_calls") or []
                if waiting:
                    process.kill()
                    process.join(60)
                    return str(waiting[0]["method"])
                process.join(0.05)
            return ""

    @contextmanager
    def fault(self, kind: str, **fields: Any) -> Iterator[str]:
        """A temporary fault; calls that it still holds at the end are dropped."""
        fault_id = remote_control.add_fault(self.cloud, kind, **fields)["id"]
        try:
            yield fault_id
        finally:
            if kind == "hold":
                remote_control.release(self.cloud, fault_id, drop=True)
            remote_control.remove_fault(self.cloud, fault_id)

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.join(60)
            process.close()


KINDS = {  # "whole" has all resources of a TPU VM's stack
    "queued": "tpu: {type: v3-8, zones: [europe-west4-a], queue: {nodes: 2}}\n",
    "group": "tpu: {type: v6e-16, api: compute, zones: [europe-west4-a]}\n",
    "node": "tpu: {type: v3-8, kind: node, zones: [europe-west4-a], data_disks: [{size_gb: 10}]}\n",
    "whole": (
        "tpu: {type: v3-8, zones: [europe-west4-a], data_disks: [{size_gb: 10}]}\n"
        "controller: {}\nlabels: {team: nlp}\n"
    ),
}


@pytest.fixture
def make_stage(cloud: LocalCloud, tmp_path: Path) -> Iterator[Callable[[str], Stage]]:
    """Create a stage for a kind of stack, each in a new project."""
    stages: list[Stage] = []

    def create(kind: str) -> Stage:
        number = next(_numbers)
        project, stack = f"crash-{os.getpid()}-{number}", f"crashed-{number}"
        folder = tmp_path / stack
        folder.mkdir()
        path = folder / "tpuctl.yaml"
        path.write_text(
            f"stack: {stack}\nproject: {{id: {project}, create: true, "
            f"billing_account: {killable_programs.ACCOUNT}}}\n{KINDS[kind]}",
            "utf-8",
        )
        stages.append(Stage(cloud, path, project, stack))
        return stages[-1]

    yield create
    for stage in stages:
        stage.close()
    assert threading.active_count() < 50


@pytest.fixture(scope="session")
def undisturbed() -> dict[str, Any]:
    """By kind of stack: its contents after `up` and after `down`, and their numbers of calls."""
    return {}
