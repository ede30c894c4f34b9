"""The startup time of a command that does nothing."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator

from tests.benchmarks.figures import TPUCTL, Figure, goal, skipped, wall

__all__ = ["help_time"]

GOAL = 0.15  # seconds


def help_time() -> Iterator[Figure]:
    """`tpuctl --help` compared with an empty Python and with gcloud's help."""
    bare = wall([sys.executable, "-c", "pass"])
    tpuctl_seconds = wall([*TPUCTL, "--help"])
    yield Figure(
        "tpuctl --help",
        f"{tpuctl_seconds:.3f} s",
        f"{tpuctl_seconds / bare:.1f} × python -c pass",
        goal(f"{GOAL:g} s", tpuctl_seconds <= GOAL),
    )
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        yield skipped("gcloud … tpu-vm --help", "gcloud is not installed")
        return
    gcloud_seconds = wall([gcloud, "compute", "tpus", "tpu-vm", "--help"], times=2)
    yield Figure(
        "gcloud … tpu-vm --help",
        f"{gcloud_seconds:.3f} s",
        f"{gcloud_seconds / tpuctl_seconds:.1f} × ours",
    )
