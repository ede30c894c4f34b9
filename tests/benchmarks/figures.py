"""What the benchmarks share: lines of the report, clocks, and clouds of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tpuctl.api import Tpuctl
from tpuctl.emulator import control
from tpuctl.model.events import Event, ignore

__all__ = ["PROJECT", "TPUCTL", "Figure", "local_cloud", "stack_in", "wall"]

PROJECT = "local-project"
_INSTALLED = Path(sys.executable).parent / "tpuctl"
TPUCTL = [str(_INSTALLED)] if _INSTALLED.exists() else [sys.executable, "-m", "tpuctl"]


@dataclass(frozen=True)
class Figure:
    """One line of the report."""

    what: str
    value: str
    beside: str = ""
    goal: str = ""


def wall(command: list[str], *, times: int = 7) -> float:
    """The least wall time of several runs, in seconds; the first one warms caches."""
    subprocess.run(command, capture_output=True, check=True)
    best = float("inf")
    for _ in range(times):
        started = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        best = min(best, time.perf_counter() - started)
    return best


@contextmanager
def local_cloud(pace: str) -> Iterator[Path]:
    """A local cloud of its own, in a folder that goes away with it."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as folder:
        root = Path(folder)
        os.environ["TPUCTL_LOCAL_HOME"] = str(root / "cloud")
        os.environ["TPUCTL_CONFIG_HOME"] = str(root / "config")
        control.start(root / "cloud", pace=pace)
        try:
            yield root
        finally:
            control.stop(root / "cloud")


def stack_in(
    folder: Path,
    emit: Callable[[Event], None] = ignore,
    *,
    name: str = "bench",
    project: str = f"id: {PROJECT}",
    tpu: str = "runtime: tpu-ubuntu2204-base",
    extra: str = "",
) -> Tpuctl:
    """A stack of bare Python machines, unless `tpu` says otherwise."""
    path = folder / f"{name}.yaml"
    path.write_text(
        f"stack: {name}\nproject: {{{project}}}\n"
        f"tpu: {{type: v2-8, zones: [us-central1-b], {tpu}}}\n{extra}",
        "utf-8",
    )
    return Tpuctl(path, cloud="local", emit=emit)
