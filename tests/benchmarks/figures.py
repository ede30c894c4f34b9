"""Shared by the benchmarks: lines of the report, sizes, clocks, and local clouds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.support.gcloud import environment_of, forked
from tests.support.locations import PROJECT
from tpuctl.api import Tpuctl
from tpuctl.local_cloud import server_process
from tpuctl.model.events import Event, ignore

# `make bench SMALLEST=1`: everything once and as small as possible, for the test suite. Its
# figures mean nothing; the suite only tests that they are printed.
IS_SMALLEST = os.environ.get("TPUCTL_BENCH_SMALLEST") == "1"
Size = TypeVar("Size")

_INSTALLED = Path(sys.executable).parent / "tpuctl"
TPUCTL = [str(_INSTALLED)] if _INSTALLED.exists() else [sys.executable, "-m", "tpuctl"]


@dataclass(frozen=True)
class Figure:
    """One line of the report."""

    label: str
    value: str
    comparison: str = ""
    goal: str = ""  # from `goal`, if there is one
    has_failed: bool = False  # there is no figure: `value` says what went wrong


def goal(limit: str, is_met: bool) -> str:
    """A goal and whether it is met."""
    return f"{limit}: {'met' if is_met else 'MISSED'}"


def skipped(label: str, reason: str) -> Figure:
    """A figure that cannot be measured here."""
    return Figure(label, "skipped", reason)


def sized(usual: Size, smallest: Size) -> Size:
    """The count, duration or size to measure, or the smallest that still covers all of it."""
    return smallest if IS_SMALLEST else usual


def command_of(stack: Tpuctl, *arguments: str) -> list[str]:
    """The command line of tpuctl for this stack on the local cloud."""
    return [*TPUCTL, "--cloud", "local", "--stack-file", str(stack.stack_file), *arguments]


def time_program(
    command: list[str], *, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> float:
    """Run a program; return its seconds. Raises RuntimeError with its errors if it fails."""
    started = time.perf_counter()
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return time.perf_counter() - started


def wall(command: list[str], *, times: int = 7) -> float:
    """The minimum wall time of several runs, in seconds, after one that warms caches."""
    if not IS_SMALLEST:
        time_program(command)
    return min(time_program(command) for _ in range(sized(times, 1)))


@contextmanager
def local_cloud(pace: str) -> Iterator[Path]:
    """Start a separate local cloud, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as folder:
        root = Path(folder)
        os.environ["TPUCTL_LOCAL_HOME"] = str(root / "cloud")
        os.environ["TPUCTL_CONFIG_HOME"] = str(root / "config")
        server_process.start(root / "cloud", pace=pace)
        try:
            yield root
        finally:
            server_process.stop(root / "cloud")


def cloud_in(root: Path) -> server_process.LocalCloud:
    """The local cloud that runs in the folder."""
    cloud = server_process.status(root / "cloud")
    assert cloud is not None
    return cloud


def gcloud_environment(
    cloud: server_process.LocalCloud, project: str, zone: str, folder: Path
) -> dict[str, str]:
    """Variables with which gcloud runs as users start it; in the smallest form, in forks."""
    is_forked = IS_SMALLEST and shutil.which("gcloud") is not None
    return environment_of(cloud, project, zone, folder) | (forked() if is_forked else {})


def stack_in(
    folder: Path,
    emit: Callable[[Event], None] = ignore,
    *,
    name: str = "bench",
    project: str = f"id: {PROJECT}",
    where: str = "type: v2-8, zones: [us-central1-b]",
    tpu: str = "runtime: tpu-ubuntu2204-base",
    extra: str = "",
) -> Tpuctl:
    """A stack of plain Python machines, unless `tpu` says otherwise."""
    path = folder / f"{name}.yaml"
    path.write_text(
        f"stack: {name}\nproject: {{{project}}}\ntpu: {{{where}, {tpu}}}\n{extra}",
        "utf-8",
    )
    return Tpuctl(path, cloud="local", emit=emit)
