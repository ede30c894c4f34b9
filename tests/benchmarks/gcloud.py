"""Listing and deleting a TPU VM with tpuctl and with gcloud, as whole programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.benchmarks.figures import (
    TPUCTL,
    Figure,
    cloud_in,
    gcloud_environment,
    goal,
    local_cloud,
    sized,
    skipped,
    stack_in,
)
from tests.support.locations import PROJECT, US_ZONE

__all__ = ["gcloud_time"]

STATUS_GOAL = 0.8  # of the time of gcloud's list
PACE = sized("quick", "instant")


def timed(command: list[str], environment: Mapping[str, str], folder: Path) -> float:
    started = time.perf_counter()
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return time.perf_counter() - started


def gcloud_time() -> Iterator[Figure]:
    """Listing and deleting a TPU VM."""
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        yield skipped("compared with gcloud", "gcloud is not installed")
        return
    with local_cloud(PACE) as folder:
        environment = gcloud_environment(cloud_in(folder), PROJECT, US_ZONE, folder)
        tpuctl_environment = os.environ | {"TPUCTL_CLOUD": "local"}
        path = str(stack_in(folder).stack_file)
        timed([*TPUCTL, "--stack-file", path, "up", "--yes"], tpuctl_environment, folder)
        node = [gcloud, "compute", "tpus", "tpu-vm"]
        where = [f"--zone={US_ZONE}", "--quiet"]
        accelerator = ["--accelerator-type=v2-8", "--version=tpu-ubuntu2204-base"]
        timed([*node, "create", "comparison", *accelerator, *where], environment, folder)
        down = ["down", "--yes", "--delete-bucket"]
        for tpuctl_command, other, limit in (
            (["status"], [*node, "list", *where], STATUS_GOAL),
            (down, [*node, "delete", "comparison", *where], None),
        ):
            took = timed(
                [*TPUCTL, "--stack-file", path, *tpuctl_command], tpuctl_environment, folder
            )
            there = timed(other, environment, folder)
            yield Figure(
                f"tpuctl {tpuctl_command[0]}",
                f"{took:.2f} s",
                f"{took / there:.2f} × gcloud … tpu-vm {other[len(node)]} ({there:.2f} s)",
                goal(f"{limit:g} ×", took <= limit * there) if limit is not None else "",
            )
