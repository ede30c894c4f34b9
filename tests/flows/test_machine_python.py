"""A computer without a Python for the runtime's TensorFlow, from `up` to the job's log.

Uses a copy of tpuctl whose images require other Python versions and install no packages.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tpuctl
from tests.support.prerequisites import empty_image_cache, hide_interpreters
from tests.support.subprocesses import run_captured
from tpuctl.interpreters import current
from tpuctl.local_cloud import server_process

STACK = """\
stack: strange
project: {id: local-project}
tpu: {type: v2-8, runtime: tpu-vm-tf-2.18.0-pjrt-v5p-and-below, zones: [us-central1-b]}
"""
MISSING_PYTHON = "3.99"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """The folder of the copy's image locks; none supports a Python of this computer."""
    package = tmp_path / "program" / "tpuctl"
    shutil.copytree(Path(tpuctl.__file__).parent, package)
    folder = package / "local_cloud" / "image_locks"
    for lock in folder.iterdir():
        lock.write_text(f"# interpreters: {MISSING_PYTHON}\n")
    return folder


@pytest.fixture
def run(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run that copy on its own local cloud, without other Pythons and uv."""
    hide_interpreters(tmp_path, monkeypatch)
    work = tmp_path / "work"
    work.mkdir()
    (work / "tpuctl.yaml").write_text(STACK)
    (work / "hello.py").write_text("print('hello from', __import__('sys').version.split()[0])\n")
    monkeypatch.chdir(work)  # where `python -m` finds no other tpuctl
    monkeypatch.setenv("PYTHONPATH", str(images.parents[2]))
    monkeypatch.setenv("TPUCTL_CLOUD", "local")
    monkeypatch.setenv("TPUCTL_LOCAL_HOME", str(tmp_path / "cloud"))
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TPUCTL_IMAGE_CACHE", str(empty_image_cache()))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return run_captured([sys.executable, "-m", "tpuctl", *words])

    server_process.start(tmp_path / "cloud", pace="instant")
    yield run
    server_process.stop(tmp_path / "cloud")


def test_up_status_and_log_report_nearest_tensorflow(run: Run, images: Path) -> None:
    (images / "2.16.1.txt").write_text(f"# interpreters: {current().minor}\n")
    note = (
        f"TensorFlow 2.16.1 instead of 2.18.0: no Python {MISSING_PYTHON} was found on PATH, "
        "in pyenv or in uv."
    )
    up = run("up", "--yes")
    assert up.returncode == 0, up.stderr
    assert [line for line in up.stderr.splitlines() if "2.16.1 instead" in line] == [
        f"The machines of the local cloud have {note}"
    ]
    status = run("local", "status")
    rows = [line.rstrip() for line in status.stdout.splitlines() if "images" in line]
    assert [row.split(maxsplit=1) for row in rows] == [["images", note]]
    job = run("run", "hello.py", "--no-check")
    assert job.returncode == 0, job.stderr
    log = job.stdout.splitlines()
    assert log[0] == f"tpuctl: this machine has {note}"
    assert log[-1] == f"hello from {current().version}"


def test_up_without_suitable_python_suggests_installation(run: Run, tmp_path: Path) -> None:
    up = run("up", "--yes")
    assert up.returncode == 1
    assert "No machine image available" in up.stderr
    assert (
        f"TensorFlow 2.18.0 needs Python {MISSING_PYTHON}. This is Python {current().minor}"
        in up.stderr
    )
    assert f"    uv python install {MISSING_PYTHON}" in up.stderr
    assert "disk" not in up.stderr
    assert not list((tmp_path / "cloud" / "machines").glob("*"))
    doctor = run("doctor")
    assert f"uv python install {MISSING_PYTHON}" in doctor.stdout + doctor.stderr
