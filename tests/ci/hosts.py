"""Computers that run pipelines' scripts, with the `tpuctl` under test.

Only these are faked: `pip` (records what it should install), `python -m venv` (a folder with the
same programs), and signing in to Google (a caller of the local cloud with the pipeline's role,
whose token can expire).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.support.callers import grant, make_role
from tests.support.forked_cli import forked_tpuctl
from tests.support.locations import PROJECT
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud

_numbers = itertools.count(1)
PYTHON = """#!/usr/bin/env bash
if [ "$1 $2" = "-m pip" ]; then exec "{python}" "{pip}" "{log}" "${{@:3}}"; fi
if [ "$1 $2" = "-m venv" ]; then mkdir -p "$3" && ln -s "{programs}" "$3/bin"; exit; fi
exec "{python}" "$@"
"""
PIP = Path(__file__).with_name("pip_stand_in.py")
# A job without TensorFlow. Arguments: number of lines, seconds between them, exit code.
SCRIPT = """\
import json, os, sys, time
print("shipped", *sorted(os.listdir(".")), flush=True)
for step in range(1, int(sys.argv[1]) + 1):
    print(json.dumps({"step": step, "loss": 8 / step}), flush=True)
    time.sleep(float(sys.argv[2]))
sys.exit(int(sys.argv[3]))
"""
ShouldCancel = Callable[[str], bool]  # whether to cancel after this line of output


@dataclass(frozen=True)
class ScriptResult:
    """Exit code and output of a script."""

    code: int
    output: str
    was_cancelled: bool = False


@dataclass
class Host:
    """Runs a pipeline's jobs, each with a separate configuration as if on its own computer."""

    cloud: LocalCloud
    folder: Path
    should_cancel: ShouldCancel = lambda line: False
    installed: Path = field(init=False)

    def __post_init__(self) -> None:
        programs = self.folder / "programs"
        programs.mkdir(parents=True)
        self.installed = self.folder / "installed"
        (programs / "tpuctl").symlink_to(forked_tpuctl())
        text = PYTHON.format(python=sys.executable, pip=PIP, log=self.installed, programs=programs)
        self._program(programs / "python", text)
        self.programs = programs

    @staticmethod
    def _program(path: Path, text: str) -> None:
        path.write_text(text, "utf-8")
        path.chmod(0o755)

    def new_machine(self) -> dict[str, str]:
        """The environment variables of a new computer: a new SSH key, and no credentials."""
        machine = self.folder / f"machine-{next(_numbers)}"
        machine.mkdir()
        inherited = ("TPUCTL_LOCAL_HOME", "TPUCTL_LOCAL_TRANSCRIPT", "PYTHONPATH", "HOME", "LANG")
        environment = {name: os.environ[name] for name in inherited if name in os.environ}
        return environment | {
            "PATH": f"{self.programs}:/usr/bin:/bin",
            "TPUCTL_CLOUD": "local",
            "TPUCTL_CONFIG_HOME": str(machine / "config"),
            "COLUMNS": "80",
        }

    def run(
        self, script: str, folder: Path, env: Mapping[str, str], *interpreter: str
    ) -> ScriptResult:
        """Run a script with this interpreter, by default the one in its first line.

        Canceled like GitHub's runner does, but faster: SIGINT to the shell only, then SIGTERM, then
        all its processes are killed.
        """
        file = self.folder / f"script-{next(_numbers)}"
        self._program(file, script)
        command = [*interpreter, str(file)]
        with subprocess.Popen(
            command,
            cwd=folder,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            limit = threading.Timer(150, os.killpg, (process.pid, signal.SIGKILL))
            limit.start()
            chunks, was_cancelled = [], False
            assert process.stdout is not None
            for line in process.stdout:
                chunks.append(line)
                if not was_cancelled and self.should_cancel(line):
                    was_cancelled = True
                    self._cancel(process)
            code = process.wait()
            limit.cancel()
        text = "".join(chunks)
        assert "Traceback" not in text, text
        return ScriptResult(code, text, was_cancelled)

    @staticmethod
    def _cancel(process: subprocess.Popen[str]) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
            try:
                process.wait(1)
                break
            except subprocess.TimeoutExpired:
                continue
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


class Callers:
    """Pipeline accounts: each sign-in is a new caller with the same role."""

    def __init__(self, cloud: LocalCloud, stack: str, role: str) -> None:
        """`role` is the output of `tpuctl doctor --role`."""
        permissions = yaml.safe_load(role)["includedPermissions"]
        self.cloud = cloud
        self.role = make_role(cloud, f"ci_{stack.replace('-', '_')}", permissions, PROJECT)
        self.members: list[str] = []
        self.on_sign_in: Callable[[int], None] = lambda count: None

    def sign_in(self) -> str:
        """Create a caller; return its member name for TPUCTL_LOCAL_CALLER."""
        member = f"user:pipeline-{next(_numbers)}@example.com"
        grant(self.cloud, f"projects/{PROJECT}", self.role, member)
        self.members.append(member)
        self.on_sign_in(len(self.members))
        return member

    def expire(self, calls: int) -> None:
        """Let the last caller's token expire after this many calls."""
        email = self.members[-1].partition(":")[2]
        fields = {"code": "UNAUTHENTICATED", "caller": email, "times": "unlimited", "at": calls}
        remote_control.add_fault(self.cloud, "error", **fields)


def make_repository(folder: Path, stack: str, more: str = "", host: str = "github.com") -> Path:
    """A checkout with a stack file for the local cloud and a job."""
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    config = f'[core]\n\tbare = false\n[remote "origin"]\n\turl = git@{host}:ann/models.git\n'
    (folder / ".git" / "config").write_text(config)
    (folder / "tpuctl.yaml").write_text(
        f"stack: {stack}\nproject: {{id: local-project}}\n"
        f"tpu: {{type: v2-8, runtime: tpu-ubuntu2204-base, zones: [us-central1-b]}}\n{more}",
        "utf-8",
    )
    (folder / "train.py").write_text(SCRIPT, "utf-8")
    return folder
