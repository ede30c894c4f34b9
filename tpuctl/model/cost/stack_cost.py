"""The cost of a running stack, in each of its zones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from tpuctl.catalog import HOURS_PER_MONTH
from tpuctl.model.cost.cost import (
    Cost,
    CostLine,
    address_cost,
    controller_cost,
    disk_cost,
    node_cost,
    storage_cost,
)
from tpuctl.model.stack.candidates import Candidate
from tpuctl.model.stack.stack import Stack
from tpuctl.units import dollars


def cost_of(stack: Stack) -> Cost:
    """The cost of everything that `up` creates, with the TPU in the zone in use.

    Excludes existing disks that the stack file names. The bucket's size is unknown, so its line
    only shows the price per GB.
    """
    tpu = stack.file.tpu
    lines = [
        node_cost(stack.accelerator, stack.zone, capacity=tpu.capacity, nodes=len(stack.nodes))
    ]
    if stack.is_compute:
        lines.append(_boot_disks(stack))
    if stack.controller is not None:
        lines += controller_cost(
            stack.controller.machine_type,
            stack.zone,
            disk_gb=stack.controller.disk_gb,
            disk_type=stack.controller.disk_type,
        )
    shapes = Counter(
        (disk.type, disk.size_gb) for disk in tpu.data_disks if disk.size_gb is not None
    )
    for (kind, size_gb), count in shapes.items():
        lines.append(disk_cost(kind, size_gb, stack.zone, count=count))
    lines += _addresses(stack)
    bucket = storage_cost(stack.bucket_location)
    return Cost((*lines, replace(bucket, item=f"bucket in {stack.bucket_location}")))


def _boot_disks(stack: Stack) -> CostLine:
    """The boot disks of a TPU's machines at Compute Engine; the Cloud TPU API includes them."""
    count = len(stack.nodes) * stack.machine.hosts
    size_gb = stack.file.tpu.boot_disk.size_gb
    line = disk_cost(stack.boot_disk_type, size_gb, stack.zone, count=count, item="boot disk")
    if line.per_hour is None:
        return line
    return replace(line, note=f"{line.note}: {dollars(line.per_hour * HOURS_PER_MONTH)} per month")


def fallback_costs(stack: Stack) -> dict[Candidate, Cost]:
    """The cost of each of the other candidates that `up` may try, in order."""
    others = (candidate for candidate in stack.candidates if candidate != stack.candidate)
    return {candidate: cost_of(stack.at(candidate)) for candidate in others}


def _addresses(stack: Stack) -> Iterable[CostLine]:
    """Addresses of the machines with SSH; a TPU node has none."""
    if stack.file.network.ssh != "external":
        return
    workers = 0 if stack.is_node else len(stack.nodes) * stack.accelerator.workers
    spot = stack.is_spot
    others = 1 if stack.controller is not None else 0
    if workers and spot:
        yield address_cost(workers, spot=True)
        workers = 0
    if workers + others:
        yield address_cost(workers + others)
