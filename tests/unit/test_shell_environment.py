"""The environment variables of a controller's shells, read by real shells."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tpuctl.flows.machines.controller import shell_variables, with_source_lines
from tpuctl.model.stack.stack import load_stack
from tpuctl.model.status.status import NodeStatus

# Like Ubuntu's: it returns immediately in non-interactive shells.
BASHRC = "case $- in\n    *i*) ;;\n      *) return;;\nesac\nexport SEEN_BY_TYPISTS=1\n"


def run_shell(home: Path, *argv: str, **environment: str) -> str:
    done = subprocess.run(
        argv,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".tpuctl").mkdir()
    (tmp_path / ".tpuctl" / "environment").write_text("export TPU_NAME='a node'\n", "utf-8")
    (tmp_path / ".bashrc").write_text(with_source_lines(BASHRC), "utf-8")
    (tmp_path / ".profile").write_text(with_source_lines("export MINE=1\n"), "utf-8")
    return tmp_path


def test_login_and_ssh_shells_see_variables(home: Path) -> None:
    assert run_shell(home, "sh", "-lc", 'echo "$TPU_NAME $MINE"') == "a node 1"
    assert run_shell(home, "bash", "-lc", 'echo "$TPU_NAME $MINE"') == "a node 1"
    script = '. "$HOME/.bashrc"; echo "$TPU_NAME ${SEEN_BY_TYPISTS-not interactive}"'
    assert run_shell(home, "bash", "-c", script) == "a node not interactive"
    (home / ".tpuctl" / "environment").unlink()
    assert run_shell(home, "sh", "-elc", 'echo "${TPU_NAME-none} $MINE"') == "none 1"


@pytest.mark.skipif(
    not Path("/etc/debian_version").exists(), reason="only bash of Debian and Ubuntu does this"
)
def test_bash_reads_bashrc_for_ssh_commands(home: Path) -> None:
    environment = {"SSH_CLIENT": "192.0.2.1 50000 22"}
    assert run_shell(home, "bash", "-c", 'echo "$TPU_NAME"', **environment) == "a node"


def test_line_is_added_once() -> None:
    once = with_source_lines(BASHRC)
    assert once.endswith(BASHRC)
    assert with_source_lines(once) == once


def test_variable_values(tmp_path: Path) -> None:
    path = tmp_path / "tpuctl.yaml"
    path.write_text(
        "stack: bert\nproject: {id: my-project}\n"
        "tpu: {kind: node, type: v3-8, zones: [europe-west4-a]}\n",
        "utf-8",
    )
    node = NodeStatus(
        name="bert-tpu",
        id="",
        zone="europe-west4-a",
        state="READY",
        health="HEALTHY",
        accelerator_type="v3-8",
        runtime="2.12.0",
        created=datetime(2026, 3, 4, tzinfo=UTC),
        addresses=("10.240.0.2",),
        ssh_ports=(),
        endpoints=("10.240.0.2:8470",),
    )
    assert shell_variables(load_stack(path), node, cloud="google") == {
        "TPU_NAME": "bert-tpu",
        "TPU_ZONE": "europe-west4-a",
        "TPU_PROJECT": "my-project",
        "TPUCTL_BUCKET": "bert-my-project",
        "TPUCTL_CLOUD": "google",
        "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://10.240.0.2:8470",
    }
