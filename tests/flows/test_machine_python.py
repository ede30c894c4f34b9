"""The Python of machines, and a computer without it, from `up` to the job's log.

Mostly uses a copy of tpuctl whose images require other Python versions and install no packages.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tpuctl
from tests.support.prerequisites import (
    empty_image_cache,
    hide_interpreters,
    lone_image_cache,
    require_python,
)
from tests.support.recovery_jobs import script
from tests.support.stack_jobs import displayed_log
from tests.support.subprocesses import run_captured
from tpuctl.api import Tpuctl
from tpuctl.interpreters import current
from tpuctl.local_cloud import server_process
from tpuctl.model.events import Event, Note

STACK = """\
stack: strange
project: {id: local-project}
tpu: {type: v2-8, runtime: tpu-vm-tf-2.18.0-pjrt-v5p-and-below, zones: [us-central1-b]}
"""
PLAIN_STACK = STACK.replace("tpu-vm-tf-2.18.0-pjrt-v5p-and-below", "tpu-ubuntu2204-base")
PRINT_VERSION = "import sys; print(*sys.version_info[:2], sep='.')"
MISSING_PYTHON = "3.99"

pytestmark = pytest.mark.long

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
def run(images: Path, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run that copy on its own local cloud, without other Pythons and uv."""
    monkeypatch.setenv("PYTHONPATH", str(images.parents[2]))
    monkeypatch.setenv("TPUCTL_IMAGE_CACHE", str(empty_image_cache()))
    yield from commands(tmp_path)


@pytest.fixture
def run_alone(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run tpuctl itself on its own local cloud, without other Pythons, their images, and uv."""
    monkeypatch.setenv("TPUCTL_IMAGE_CACHE", str(lone_image_cache()))
    yield from commands(tmp_path)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a stack file and a script, on a computer without other Pythons and uv."""
    hide_interpreters(tmp_path, monkeypatch)
    work = tmp_path / "work"
    work.mkdir()
    (work / "tpuctl.yaml").write_text(STACK)
    (work / "hello.py").write_text("print('hello from', __import__('sys').version.split()[0])\n")
    monkeypatch.chdir(work)  # where `python -m` finds no other tpuctl
    monkeypatch.setenv("TPUCTL_CLOUD", "local")
    monkeypatch.setenv("TPUCTL_LOCAL_HOME", str(tmp_path / "cloud"))
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path / "config"))
    return work


def commands(folder: Path) -> Iterator[Run]:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return run_captured([sys.executable, "-m", "tpuctl", *words])

    server_process.start(folder / "cloud", pace="instant")
    yield run
    server_process.stop(folder / "cloud")


def test_up_status_and_log_report_nearest_tensorflow(run: Run, images: Path) -> None:
    (images / "2.16.1.txt").write_text(f"# interpreters: {current().minor}\n")
    note = (
        f"TensorFlow 2.16.1 instead of 2.18.0: no Python {MISSING_PYTHON} was found on PATH, "
        f"in pyenv or in uv. Python {current().minor} instead of 3.10: the images with TensorFlow "
        f"2.16.1 are for Python {current().minor}."
    )
    assert_note_is_reported(run, note)


def test_up_status_and_log_report_nearest_python(run_alone: Run, work: Path) -> None:
    (work / "tpuctl.yaml").write_text(PLAIN_STACK)
    assert_note_is_reported(
        run_alone,
        f"Python {current().minor} instead of 3.10: no Python 3.10 was found on PATH, in pyenv or "
        "in uv.",
    )
    doctor = run_alone("doctor")
    assert "instead of 3.10: no Python 3.10" in " ".join(doctor.stdout.split())


@pytest.mark.parametrize(
    ("type_name", "runtime", "zone", "python"),
    [
        ("v2-8", "tpu-ubuntu2204-base", "us-central1-b", "3.10"),
        ("tpu7x-8", "auto, api: compute", "us-central1-c", "3.12"),
    ],
)
async def test_machine_has_python_of_its_image(
    make_stack: Callable[..., Tpuctl],
    events: list[Event],
    type_name: str,
    runtime: str,
    zone: str,
    python: str,
) -> None:
    require_python(python)
    stack = make_stack(type_name=type_name, runtime=runtime, zone=zone)
    await stack.up()
    assert await stack.run(script(stack, PRINT_VERSION)) == 0
    assert displayed_log(events) == f"{python}\n"
    assert not [event for event in events if isinstance(event, Note) and "instead" in event.text]
    await stack.down(delete_bucket=True)


def assert_note_is_reported(run: Run, note: str) -> None:
    """By `up`, by `local status`, and in the first line of a job's log."""
    up = run("up", "--yes")
    assert up.returncode == 0, up.stderr
    assert [line for line in up.stderr.splitlines() if " instead of " in line] == [
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


def test_logs_without_the_note(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `test_up_status_and_log_report_nearest_python`, but of its lines just that of `up`."""
    monkeypatch.setenv("TPUCTL_IMAGE_CACHE", str(lone_image_cache()))
    monkeypatch.setenv("TPUCTL_LOCAL_NOTES", "off")
    (work / "tpuctl.yaml").write_text(PLAIN_STACK)
    for run in commands(tmp_path):
        assert "instead of 3.10" in run("up", "--yes").stderr
        job = run("run", "hello.py", "--no-check")
        assert job.stdout == f"hello from {current().version}\n", job.stderr


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
