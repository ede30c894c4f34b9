"""The startup time of commands that do little."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.figures import TPUCTL, Figure, goal, skipped, wall

GOAL = 0.15  # seconds
GOAL_CHECK = 12.0  # times an empty Python
SCRIPT = "import tensorflow as tf\n\nprint(tf.constant(1.0))\n"


def help_time() -> Iterator[Figure]:
    """`tpuctl --help`, and the check of a small script, compared with an empty Python; the first
    also with gcloud's help.
    """
    bare = wall([sys.executable, "-c", "pass"])
    tpuctl_seconds = wall([*TPUCTL, "--help"])
    yield Figure(
        "tpuctl --help",
        f"{tpuctl_seconds:.3f} s",
        f"{tpuctl_seconds / bare:.1f} × python -c pass",
        goal(f"{GOAL:g} s", tpuctl_seconds <= GOAL),
    )
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as folder:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT, "utf-8")
        check_seconds = wall([*TPUCTL, "check", str(script)])
    yield Figure(
        "tpuctl check, 3 lines",
        f"{check_seconds:.3f} s",
        f"{check_seconds / bare:.1f} × python -c pass",
        goal(f"{GOAL_CHECK:g} × python -c pass", check_seconds <= GOAL_CHECK * bare),
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
