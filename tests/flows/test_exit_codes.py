"""The documented exit codes of jobs and of errors that prevent them from running.

Ctrl-C, a second one, and a killed client are tested with the commands; preemption with recovery.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.callers import Member, grant
from tests.support.forked_cli import forked_tpuctl, run_tpuctl
from tpuctl.api import Tpuctl
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import Event, JobEnded, Note

pytestmark = pytest.mark.long

ENDLESS_SCRIPT = "import time\nprint('it runs', flush=True)\nwhile True: time.sleep(0.1)\n"
# Kills the parent process, which waits for the script and records its exit status.
KILL_PARENT = "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos.kill(os.getpid(), 9)\n"


class Shell:
    """A folder with a stack that is up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def script(self, name: str, text: str) -> str:
        (self.folder / "job").mkdir(exist_ok=True)
        (self.folder / "job" / name).write_text(text, "utf-8")
        return f"job/{name}"

    def run(self, *arguments: str, **env: str) -> tuple[int, dict[str, Any], str]:
        """Exit code, the envelope's data, and the diagnostics."""
        done = run_tpuctl(*arguments, "--json", folder=self.folder, **env)
        answer = json.loads(done.stdout)
        assert answer["exit_code"] == done.returncode
        message = " ".join(
            f"{diagnostic['summary']}: {diagnostic['detail']}"
            for diagnostic in answer["diagnostics"]
        )
        return done.returncode, answer["data"], message

    def recorded(self, job: str) -> tuple[str, int, str]:
        """State, exit code and cause of worker 0, from the bucket."""

        async def read() -> bytes:
            stack = Tpuctl(self.folder / "tpuctl.yaml", cloud="local")
            return await stack.store.get_bytes((await stack.job(job)).record_name(0))

        content = json.loads(asyncio.run(read()))
        return content["state"], content["exit_code"], content["cause"]


@pytest.fixture(scope="module")
def shell(local_cloud: LocalCloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    folder = tmp_path_factory.mktemp("codes")
    (folder / "tpuctl.yaml").write_text(
        "stack: codes\nproject: {id: local-project}\n"
        "tpu: {type: v2-8, runtime: tpu-ubuntu2204-base, zones: [us-central1-b]}\n"
        "job: {retries: {preemption: 0, infrastructure: 0, failure: 0, requested: 0}}\n",
        "utf-8",
    )
    shell = Shell(folder)
    code, _, errors = shell.run("up", "--yes")
    assert code == 0, errors
    yield shell
    assert shell.run("down", "--yes", "--delete-bucket")[0] == 0


@pytest.mark.parametrize(
    ("ending", "code", "cause"),
    [
        ("raise SystemExit(75)", 75, "script"),  # has another meaning as a tpuctl code
        ("import os; os.kill(os.getpid(), 11)", 139, "signal"),
        (
            "import os, signal; signal.signal(2, signal.SIG_DFL); os.kill(os.getpid(), 2)",
            130,
            "signal",
        ),
    ],
)
def test_job_exit_code_is_distinguished_from_tpuctl_code(
    shell: Shell, ending: str, code: int, cause: str
) -> None:
    done, data, errors = shell.run("run", shell.script("own.py", ending))
    assert (done, data["state"], data["job_exit_code"]) == (code, "failed", code)
    assert shell.recorded(data["job"]) == ("failed", code, cause)
    assert "Job failed" in errors


async def test_lost_job_exits_with_69(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process, to shorten the wait for a preemption report of the cloud."""
    monkeypatch.setattr("tpuctl.flows.jobs.attempt_outcome.SETTLE_SECONDS", 1.0)
    events: list[Event] = []
    stack = Tpuctl(shell.folder / "tpuctl.yaml", cloud="local", emit=events.append)
    job = shell.folder / shell.script("losing.py", KILL_PARENT)
    assert await asyncio.wait_for(stack.run(job), 120) == 69
    [ended] = [event for event in events if isinstance(event, JobEnded)]
    assert (ended.state, ended.exit_code, ended.is_job_exit_code) == ("lost", 69, False)
    notes = [note.text for note in events if isinstance(note, Note)]
    assert sum("Checking the node's state" in note for note in notes) == 1


def test_timeout_stops_job_with_124(shell: Shell) -> None:
    job = shell.script("endless.py", ENDLESS_SCRIPT)
    done, data, errors = shell.run("run", "--timeout", "1s", job)
    assert (done, data["state"], data["job_exit_code"]) == (124, "timed_out", None)
    assert "time limit" in errors
    assert shell.recorded(data["job"]) == ("timed_out", 124, "timeout")
    done, data, _ = shell.run("run", "--detach", "--timeout", "2s", job)
    assert done == 0
    done, data, _ = shell.run("wait", data["job"])
    assert (done, data["state"]) == (124, "timed_out")


def test_wait_timeout_exits_with_124_and_keeps_job(shell: Shell) -> None:
    job = shell.script("endless.py", ENDLESS_SCRIPT)
    _, data, _ = shell.run("run", "--detach", job)
    name = data["job"]
    done, data, errors = shell.run("wait", "--timeout", "0.5s", name)
    assert (done, data["state"], data["job_exit_code"]) == (124, None, None)
    assert "is still running" in errors
    with subprocess.Popen(
        [forked_tpuctl(), "wait", name, "--json"],
        cwd=shell.folder,
        stdout=subprocess.PIPE,
        text=True,
    ) as waiting:
        assert shell.run("stop", name)[0] == 0
        out, _ = waiting.communicate(timeout=90)
    answer = json.loads(out)
    assert (waiting.returncode, answer["data"]["state"]) == (143, "stopped")
    assert shell.recorded(name) == ("stopped", 143, "stopped")


def test_denied_request_exits_with_its_code(shell: Shell, local_cloud: LocalCloud) -> None:
    assert shell.run("run", "job/absent.py")[0] == 2
    assert shell.run("run", "--timeout", "1y", shell.script("fine.py", "print(1)\n"))[0] == 2
    assert shell.run("run", shell.script("broken.py", "if\n"))[0] == 65
    member = Member(local_cloud, "passer-by")
    for role in ("roles/tpu.viewer", "roles/compute.viewer"):
        grant(local_cloud, "projects/local-project", role, member.name)
    done, _, errors = shell.run("run", "job/fine.py", TPUCTL_LOCAL_CALLER=member.name)
    assert done == 77
    assert "storage." in errors, "the account may not write to the bucket"
