"""A job's worker in a separate home folder, running the shipped programs unmodified."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.polling import until
from tpuctl.assets import shipped_programs
from tpuctl.jobs.launch import SHIPPED
from tpuctl.model.jobs.job import WorkerRecord

OLDEST = Path("~/.pyenv/versions/3.8.18/bin/python3.8").expanduser()
# The flows run the same programs on newer Pythons.
PYTHONS: list[Any] = (
    [pytest.param(sys.executable, marks=pytest.mark.soak), str(OLDEST)]
    if OLDEST.exists()
    else [sys.executable]
)
TIMEOUT = 120.0  # only failing tests wait this long


class Worker:
    """A home folder with one job in it, driven by the shipped files."""

    def __init__(self, home: Path, python: str) -> None:
        self.variables: dict[str, str] = {}  # of the machine, in addition to the usual ones
        self.home = home
        self.python = python
        self.folder = home / ".tpuctl/jobs/20260101-000000-acorn/1"
        self.folder.mkdir(parents=True)
        for name in SHIPPED:
            shutil.copy(shipped_programs()[name], self.folder / name)

    def write_spec(self, script: str, *args: str, **more: Any) -> None:
        """Write the spec of a job that runs this script."""
        (self.folder / "code").mkdir(exist_ok=True)
        (self.folder / "code/job.py").write_text(script)
        spec = {
            "job": "20260101-000000-acorn",
            "attempt": 1,
            "worker": 0,
            "argv": ["{python}", "job.py", *args],
            "python": self.python,
        }
        (self.folder / "spec.json").write_text(json.dumps({**spec, **more}))

    def argv(self, command: str, *options: str) -> list[str]:
        script = str(self.folder / "supervisor.py")
        return [self.python, "-S", "-I", script, command, str(self.folder), *options]

    @property
    def environment(self) -> dict[str, str]:
        return {"HOME": str(self.home), "PATH": os.environ["PATH"], **self.variables}

    def run(
        self, command: str, *options: str, input: bytes | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            self.argv(command, *options),
            env=self.environment,
            input=input,
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
        )

    def open(self, command: str, *options: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.argv(command, *options),
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def record(self, command: str, *options: str) -> WorkerRecord:
        done = self.run(command, *options)
        assert done.returncode == 0, done.stderr.decode()
        return WorkerRecord.model_validate_json(done.stdout)

    def follow(self, offset: int = 0) -> tuple[bytes, WorkerRecord]:
        """Follow the log to the end; returns the bytes and the final record."""
        done = self.run("tail", "--offset", str(offset), "--follow")
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout, WorkerRecord.model_validate_json(done.stderr)

    def read(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

    def until_logged(self, text: bytes) -> None:
        log = self.folder / "log"
        until(lambda: log.exists() and text in log.read_bytes(), f"{text!r} in the log")

    def processes(self) -> dict[int, list[str]]:
        """The processes of this worker, identified by its home in their environment."""
        processes = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    environment = (entry / "environ").read_bytes().split(b"\0")
                    if f"HOME={self.home}".encode() in environment:
                        line = (entry / "cmdline").read_bytes().decode().strip("\0").split("\0")
                        processes[int(entry.name)] = line
                except OSError:
                    continue
        return processes

    def pid_of(self, script: str) -> int:
        """The only process with this script or last argument."""
        pids = []
        for pid, line in self.processes().items():
            scripts = [argument for argument in line if argument.endswith(".py")]
            if scripts and Path(scripts[0]).name == "set_clock.py":
                del scripts[0]
            if Path(scripts[0] if scripts else line[-1]).name == script:
                pids.append(pid)
        assert len(pids) == 1, self.processes()
        return pids[0]

    def kill(self, script: str) -> None:
        """Kill the only process of this script, like the kernel's OOM killer, and wait until it has
        released its files and locks."""
        pid = self.pid_of(script)
        os.kill(pid, signal.SIGKILL)
        until(lambda: not _is_alive(pid), f"the end of {script}")

    def close(self) -> None:
        """Kill the remaining processes of this worker."""
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _is_alive(pid: int) -> bool:
    """Whether a process exists that is not only waiting for its parent."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


class ClockedWorker(Worker):
    """A worker with an adjustable clock, whose supervisor's checks are counted.

    The supervisor checks its limits, so the job needs one: `max_seconds`.
    """

    def argv(self, command: str, *options: str) -> list[str]:
        python, _, _, *rest = super().argv(command, *options)
        program = Path(__file__).with_name("set_clock.py")
        files = [str(self.home / "offset"), str(self.home / "looks")]
        return [python, "-S", "-I", str(program), *files, *rest]

    def set_clock(self, seconds: float) -> None:
        """Set the clock ahead by this many seconds."""
        (self.home / "offset.new").write_text(str(seconds))
        (self.home / "offset.new").rename(self.home / "offset")

    def until_checked(self, times: int) -> None:
        """Wait until the supervisor has checked the job's limits this many more times."""
        looks = self.home / "looks"
        enough = looks.stat().st_size + times
        until(lambda: looks.stat().st_size >= enough, f"{times} checks by the supervisor")


def worker_fixture(pythons: Sequence[str] = PYTHONS, kind: type[Worker] = Worker) -> Any:
    """A fixture for a worker with each of these Pythons; its processes are killed at the end."""

    @pytest.fixture(params=pythons, ids=lambda path: Path(path).name)
    def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Worker]:
        worker = kind(tmp_path, request.param)
        yield worker
        worker.close()

    return worker
