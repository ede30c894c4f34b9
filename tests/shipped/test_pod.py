"""`pod.py`, which runs an exported job in a container: exit codes, SIGTERM, messages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.polling import until
from tests.support.supervised_worker import PYTHONS, TIMEOUT
from tpuctl.assets import program
from tpuctl.jobs.launch import SHIPPED

SAVES = """
import signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("began", flush=True)
time.sleep(600)
"""


class Container:
    """A home folder with the programs and the unpacked bundle, in which one container runs."""

    def __init__(self, home: Path, python: str) -> None:
        self.home = home
        self.python = python
        self.folder = home / ".tpuctl/pod"
        (self.folder / "code").mkdir(parents=True)
        for name in (*SHIPPED, "pod.py"):
            (self.folder / name).write_text(program(name), "utf-8")
        self.processes: list[subprocess.Popen[str]] = []

    def start(
        self, *command: str, variables: Mapping[str, str] | None = None, **spec: Any
    ) -> subprocess.Popen[str]:
        shared = {"job": "bert", "slices": 1, "workers": 1, "bucket": "none", "bundle": {}, **spec}
        environment = {
            "HOME": str(self.home),
            "PATH": os.environ["PATH"],
            "TPUCTL_PROGRAMS": "programs",
            "TPUCTL_SPEC": json.dumps(shared),
            "JOB_COMPLETION_INDEX": "0",
            "JOBSET_JOB_INDEX": "0",
            "JOBSET_RESTART_ATTEMPT": "0",
            **(variables or {}),
        }
        argv = [self.python, "-S", "-I", str(self.folder / "pod.py"), str(self.folder), *command]
        process = subprocess.Popen(
            argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.processes.append(process)
        return process

    def run(self, *command: str, **settings: Any) -> tuple[int, str]:
        """The exit code and the output."""
        process = self.start(*command, **settings)
        output = process.communicate(timeout=TIMEOUT)[0]
        return process.returncode, output


@pytest.fixture(params=PYTHONS, ids=lambda path: Path(path).name)
def container(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Container]:
    container = Container(tmp_path, request.param)
    yield container
    for process in container.processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (("sh", "-c", "echo fine"), 0, "fine\n"),
        (("sh", "-c", "exit 3"), 3, ""),
        (("sh", "-c", "exit 75"), 75, ""),
        (("sh", "-c", "kill -KILL $$"), 137, "tpuctl: the job was killed by SIGKILL\n"),
        (("absent",), 127, "tpuctl: cannot start absent: No such file or directory\n"),
    ],
)
def test_exit_code_is_that_of_the_job(
    container: Container, command: tuple[str, ...], code: int, message: str
) -> None:
    assert container.run(*command) == (code, message)


def test_workers_and_attempts_are_numbered_across_slices(container: Container) -> None:
    numbers = "$TPUCTL_SLICE/$TPUCTL_SLICES $TPUCTL_WORKER $TPUCTL_ATTEMPT"
    script = f"echo {numbers} ${{TPUCTL_SPEC-none}} ${{JOBSET_JOB_INDEX-none}}"
    index = {"JOBSET_JOB_INDEX": "2", "JOB_COMPLETION_INDEX": "3", "JOBSET_RESTART_ATTEMPT": "4"}
    code, output = container.run("sh", "-c", script, variables=index, slices=3, workers=12)
    assert (code, output) == (0, "2/3 11 5 none none\n")


def test_job_has_the_company_network(container: Container) -> None:
    proxy = "http://proxy.example.com:3128"
    network = {"proxy": proxy, "no_proxy": [".corp.example.com"], "ca": "COMPANY"}
    variables = {"https_proxy": "http://mine:1", "PIP_CERT": "mine.pem", "NO_PROXY": "image"}
    spec = {"network": network, "job_variables": ["PIP_CERT", "https_proxy"]}
    script = (
        "echo $https_proxy$HTTPS_PROXY $HTTP_PROXY $no_proxy $PIP_CERT; tail -n 1 $SSL_CERT_FILE"
    )
    code, output = container.run("sh", "-c", script, variables=variables, **spec)
    assert (code, output) == (
        0,
        f"http://mine:1 {proxy} .corp.example.com,image mine.pem\nCOMPANY",
    )


@pytest.mark.parametrize("workers", [1, 4])
def test_evicted_job_saves_and_is_not_complete(container: Container, workers: int) -> None:
    process = container.start("python", "-c", SAVES, workers=workers)
    assert process.stdout is not None
    assert process.stdout.readline() == "began\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT) == 143, "exit code 0 would complete the worker"
    assert process.stdout.read() == "saved\n"


def test_failure_of_one_of_several_workers_waits_for_eviction(container: Container) -> None:
    process = container.start("sh", "-c", "exit 3", workers=4)
    assert process.stdout is not None
    assert "exit code 3, reported in 60 s unless" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT) == 3
    code, output = container.run("sh", "-c", "exit 3", workers=4, peer_seconds=0.1)
    assert (code, output.count("reported in")) == (3, 1)
    assert container.run("sh", "-c", "exit 75", workers=4) == (75, "")


def test_eviction_ends_the_preparation(container: Container) -> None:
    script = "echo preparing > prepared; sleep 600"
    process = container.start("true", install={"setup": script})
    until((container.folder / "code/prepared").exists, "the setup command has started")
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT) == 143
    assert process.stdout is not None
    assert "terminated: the pod was evicted" in process.stdout.read()


def test_failed_preparation_is_reported(container: Container) -> None:
    code, output = container.run("true", install={"setup": "echo no compiler; exit 4"})
    assert code == 1
    assert "no compiler\n" in output
    assert "setup: the setup command failed with exit code 4" in output


def test_unavailable_bundle_is_retried(container: Container) -> None:
    (container.folder / "code").rmdir()
    bundle = {"sha256": "0" * 64, "name": ""}
    code, output = container.run("true", bundle=bundle)
    assert code == 75
    assert "bundle: the bundle was not uploaded to this machine" in output
