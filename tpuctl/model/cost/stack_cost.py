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
    nat_cost,
    node_cost,
    spent,
    storage_cost,
)
from tpuctl.model.stack.candidates import Candidate
from tpuctl.model.stack.spending import CONTROLLER, DISKS, TPU
from tpuctl.model.stack.stack import Stack
from tpuctl.units import dollars


def cost_of(stack: Stack) -> Cost:
    """The cost of everything that `up` creates, with the TPU in the zone in use.

    Excludes existing disks that the stack file names. The bucket's size is unknown, so its line
    only shows the price per GB.
    """
    bucket = storage_cost(stack.bucket_location)
    return Cost(
        (
            *_tpu(stack),
            *_controller(stack),
            *_data_disks(stack),
            *_addresses(stack),
            *_nat(stack),
            replace(bucket, item=f"bucket in {stack.bucket_location}"),
        )
    )


def hourly_rates(stack: Stack) -> dict[str, float]:
    """Dollars an hour, as far as prices are known, of what may exist without the rest: by item of
    the stack's ledger, with the external addresses of its machines, or their NAT."""
    parts = {
        TPU: ([*_tpu(stack), *_nat(stack)], _worker_addresses(stack), stack.is_spot),
        CONTROLLER: (_controller(stack), _controller_addresses(stack), False),
        DISKS: (_data_disks(stack), 0, False),
    }
    return {
        item: spent([*lines, address_cost(addresses, spot=spot)], 1) or 0.0
        for item, (lines, addresses, spot) in parts.items()
        if lines
    }


def _tpu(stack: Stack) -> list[CostLine]:
    count = len(stack.nodes)
    capacity = stack.file.tpu.capacity
    line = node_cost(stack.accelerator, stack.zone, capacity=capacity, nodes=count)
    return [line, _boot_disks(stack)] if stack.is_compute else [line]


def _controller(stack: Stack) -> list[CostLine]:
    section = stack.controller
    if section is None:
        return []
    machine, zone = section.machine_type, stack.zone
    return [*controller_cost(machine, zone, disk_gb=section.disk_gb, disk_type=section.disk_type)]


def _data_disks(stack: Stack) -> list[CostLine]:
    disks = stack.file.tpu.data_disks
    shapes = Counter((disk.type, disk.size_gb) for disk in disks if disk.size_gb is not None)
    return [
        disk_cost(kind, size_gb, stack.zone, count=count)
        for (kind, size_gb), count in shapes.items()
    ]


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
    workers, others = _worker_addresses(stack), _controller_addresses(stack)
    if workers and stack.is_spot:
        yield address_cost(workers, spot=True)
        workers = 0
    if workers + others:
        yield address_cost(workers + others)


def _nat(stack: Stack) -> list[CostLine]:
    if not stack.file.network.nat:
        return []
    return [nat_cost(_workers(stack) + int(stack.controller is not None))]


def _worker_addresses(stack: Stack) -> int:
    return _workers(stack) if stack.file.network.ssh == "external" else 0


def _workers(stack: Stack) -> int:
    """The workers that are machines in the stack's network: of a TPU node, none is."""
    return 0 if stack.is_node else len(stack.nodes) * stack.accelerator.workers


def _controller_addresses(stack: Stack) -> int:
    return int(stack.controller is not None and stack.file.network.ssh == "external")
