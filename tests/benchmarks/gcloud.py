"""Listing and deleting a TPU VM with tpuctl and with gcloud, as whole programs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from tests.benchmarks.figures import (
    Figure,
    cloud_in,
    command_of,
    gcloud_environment,
    goal,
    local_cloud,
    sized,
    skipped,
    stack_in,
    time_program,
)
from tests.support.locations import PROJECT, US_ZONE

STATUS_GOAL = 0.8  # of the time of gcloud's list
PACE = sized("quick", "instant")


def gcloud_time() -> Iterator[Figure]:
    """Listing and deleting a TPU VM."""
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        yield skipped("compared with gcloud", "gcloud is not installed")
        return
    with local_cloud(PACE) as folder:
        environment = gcloud_environment(cloud_in(folder), PROJECT, US_ZONE, folder)
        stack = stack_in(folder)
        time_program(command_of(stack, "up", "--yes"))
        node = [gcloud, "compute", "tpus", "tpu-vm"]
        where = [f"--zone={US_ZONE}", "--quiet"]
        accelerator = ["--accelerator-type=v2-8", "--version=tpu-ubuntu2204-base"]
        create = [*node, "create", "comparison", *accelerator, *where]
        time_program(create, environment=environment, folder=folder)
        down = ["down", "--yes", "--delete-bucket"]
        for tpuctl_command, other, limit in (
            (["status"], [*node, "list", *where], STATUS_GOAL),
            (down, [*node, "delete", "comparison", *where], None),
        ):
            took = time_program(command_of(stack, *tpuctl_command))
            there = time_program(other, environment=environment, folder=folder)
            yield Figure(
                f"tpuctl {tpuctl_command[0]}",
                f"{took:.2f} s",
                f"{took / there:.2f} × gcloud … tpu-vm {other[len(node)]} ({there:.2f} s)",
                goal(f"{limit:g} ×", took <= limit * there) if limit is not None else "",
            )
