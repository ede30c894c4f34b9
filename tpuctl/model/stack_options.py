"""Which options of a stack file go together: kinds, capacities, queues, disks, limits."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterator

from tpuctl.catalog import (
    AcceleratorType,
    accelerator_types,
    flex_start_zones,
    nearest,
    node_cidr_prefix,
    node_price,
    node_version,
    node_versions,
    traffic_price,
)
from tpuctl.errors import Diagnostic
from tpuctl.model.duration import seconds_of
from tpuctl.model.machine_rules import machine_problems
from tpuctl.model.names import STACK_LABEL
from tpuctl.model.network_rules import network_problems
from tpuctl.model.schema import StackFile
from tpuctl.model.stack_text import StackText

__all__ = ["egress_note", "option_problems"]

LONGEST_RUN = 7 * 86400.0  # of flex-start, as Google documents it
NODE_GENERATIONS = ("v2", "v3")  # TPU nodes were never offered for later ones


def option_problems(
    file: StackFile, accelerator: AcceleratorType, text: StackText
) -> Iterator[Diagnostic]:
    """Everything that each key alone allows, but not together with the others."""
    if file.tpu.kind == "node":
        yield from _node_problems(file, accelerator, text)
    else:
        yield from _vm_problems(file, accelerator, text)
    yield from _capacity_problems(file, accelerator, text)
    yield from _disk_problems(file, accelerator, text)
    yield from machine_problems(file, accelerator, text)
    yield from network_problems(file, text)
    for name in sorted(file.job.env.keys() & file.job.secrets.keys()):
        yield Diagnostic(
            "Variable twice",
            f"{name} stands under job.env and under job.secrets",
            "Keep one of them.",
            text.where(f"job.secrets.{name}"),
        )
    if file.project.parent is not None and not file.project.create:
        yield Diagnostic(
            "Parent without a new project",
            "project.parent says where a project is made",
            "Make one with\n    project: {create: true}\nor take the parent out.",
            text.where("project.parent"),
        )
    if STACK_LABEL in file.labels:
        yield Diagnostic(
            "Label is tpuctl's own",
            f"{STACK_LABEL} is how a stack's resources are found",
            "Choose another key.",
            text.where(f"labels.{STACK_LABEL}"),
        )
    if file.limits.max_cost is not None and not _priced(file, accelerator):
        yield Diagnostic(
            "No price to limit by",
            f"nobody has published a price of {accelerator.name} there",
            "Use limits.max_hours.",
            text.where("limits.max_cost"),
        )
    script = file.tpu.startup_script
    if script is not None and not (text.folder / script).is_file():
        yield Diagnostic(
            "No such file",
            f"tpu.startup_script: there is no {text.folder / script}",
            "Paths are relative to the stack file.",
            text.where("tpu.startup_script"),
        )


def egress_note(source: str, target: str) -> str:
    """What a node in `target` pays to read a bucket in `source`, to stand behind what says so.

    For example `: what the node reads from it costs $0.05 a GB (prices of mid-2026)`.
    """
    rate = traffic_price(source, target)
    if rate is None:
        return ": what the node reads from it is charged, at a price that nobody published"
    if not rate.amount:
        return ": what the node reads from it is free, not so what it writes elsewhere"
    return f": what the node reads from it costs {rate} (prices of {rate.read})"


def _priced(file: StackFile, accelerator: AcceleratorType) -> bool:
    zones = file.tpu.zones or accelerator.zones
    prices = [node_price(accelerator, zone, capacity=file.tpu.capacity) for zone in zones]
    return None not in prices if file.tpu.zones else any(prices)


def _node_problems(
    file: StackFile, accelerator: AcceleratorType, text: StackText
) -> Iterator[Diagnostic]:
    if accelerator.generation not in NODE_GENERATIONS:
        yield Diagnostic(
            "Type is no TPU node",
            f"{accelerator.name} is offered as TPU VM alone",
            "Use\n    kind: vm",
            text.where("tpu.type"),
        )
    wanted = file.tpu.runtime
    if wanted != "auto" and node_version(wanted) is None:
        like = nearest(wanted, [one.version for one in node_versions()])
        yield Diagnostic(
            "Unknown runtime",
            f"there are no TPU nodes with {wanted}",
            (f"Did you mean {', '.join(like)}?\n" if like else "")
            + f"Or use auto, which is {node_versions()[0].version}.",
            text.where("tpu.runtime"),
        )
    for key in ("topology", "queue"):
        if getattr(file.tpu, key) is not None:
            yield Diagnostic(
                "Not for TPU nodes",
                f"tpu.{key} is of TPU VMs alone",
                "Take it out, or use\n    kind: vm",
                text.where(f"tpu.{key}"),
            )
    if file.tpu.capacity in ("spot", "flex-start"):
        yield Diagnostic(
            "Not for TPU nodes",
            f"a TPU node's capacity cannot be {file.tpu.capacity}",
            "Use on-demand, preemptible or reserved.",
            text.where("tpu.capacity"),
        )
    yield from _range_problems(file.network.node_range, accelerator, text)


def _range_problems(
    wanted: str, accelerator: AcceleratorType, text: StackText
) -> Iterator[Diagnostic]:
    if wanted in ("auto", "service-networking"):
        return
    prefix = node_cidr_prefix(accelerator)
    where = text.where("network.node_range")
    try:
        found = ipaddress.IPv4Network(wanted)
    except ValueError as error:
        yield Diagnostic(
            "Invalid value", f"network.node_range: {error}", "For example auto.", where
        )
        return
    if found.prefixlen > prefix:
        yield Diagnostic(
            "Address range too small",
            f"{accelerator.name} needs a /{prefix}, {wanted} is smaller",
            "Use auto to have a free range found.",
            where,
        )


def _vm_problems(
    file: StackFile, accelerator: AcceleratorType, text: StackText
) -> Iterator[Diagnostic]:
    if file.network.node_range != "auto":
        yield Diagnostic(
            "Only for TPU nodes",
            "network.node_range is the address range of a TPU node",
            "Take it out, or use\n    kind: node",
            text.where("network.node_range"),
        )
    wanted = file.tpu.topology
    if wanted is None:
        return
    parts = wanted.split("x")
    is_shape = all(part.isdigit() and int(part) > 0 for part in parts) and len(parts) in (2, 3)
    if not is_shape or math.prod(map(int, parts)) != accelerator.chips:
        same = [
            one.topology
            for one in accelerator_types().values()
            if one.generation == accelerator.generation and one.chips == accelerator.chips
        ]
        yield Diagnostic(
            "Topology does not fit the type",
            f"{accelerator.name} has {accelerator.chips} chips, {wanted} has not",
            f"Usual for it: {', '.join(sorted({one for one in same if one}))}.",
            text.where("tpu.topology"),
        )


def _capacity_problems(
    file: StackFile, accelerator: AcceleratorType, text: StackText
) -> Iterator[Diagnostic]:
    queue, capacity = file.tpu.queue, file.tpu.capacity
    if capacity == "flex-start" and not flex_start_zones(accelerator):
        yield Diagnostic(
            "Flex-start is not offered",
            f"no zone is known that gives {accelerator.name} so",
            "Choose a v5e, v5p or v6e type, or another capacity with\n    queue: true",
            text.where("tpu.capacity"),
        )
    if capacity == "flex-start" and (queue is None or queue.run_for is None):
        yield Diagnostic(
            "Flex-start without a duration",
            "flex-start is asked for through a queue, for a given time",
            "For example\n    queue: {run_for: 4h}",
            text.where("tpu.capacity"),
        )
    if queue is None:
        return
    if queue.run_for is not None:
        if capacity != "flex-start":
            yield Diagnostic(
                "Duration without flex-start",
                f"tpu.queue.run_for is for flex-start, the capacity is {capacity}",
                "Use limits.max_hours, or\n    capacity: flex-start",
                text.where("tpu.queue.run_for"),
            )
        if seconds_of(queue.run_for) > LONGEST_RUN:
            yield Diagnostic(
                "Run is too long",
                f"flex-start lasts at most 7 days, not {queue.run_for}",
                "Ask for 7d or less.",
                text.where("tpu.queue.run_for"),
            )
    if queue.guaranteed and file.tpu.capacity in ("spot", "preemptible", "flex-start"):
        yield Diagnostic(
            "Capacity cannot be guaranteed",
            f"{capacity} nodes may be taken away",
            "Take tpu.queue.guaranteed out, or use on-demand or reserved.",
            text.where("tpu.queue.guaranteed"),
        )
    if queue.reservation is not None and capacity != "reserved":
        yield Diagnostic(
            "Reservation without reserved capacity",
            f"tpu.queue.reservation is for reserved capacity, it is {capacity}",
            "Use\n    capacity: reserved",
            text.where("tpu.queue.reservation"),
        )


def _disk_problems(
    file: StackFile, accelerator: AcceleratorType, text: StackText
) -> Iterator[Diagnostic]:
    for index, disk in enumerate(file.tpu.data_disks):
        where = text.where(f"tpu.data_disks.{index}")
        if (disk.name is None) == (disk.size_gb is None):
            yield Diagnostic(
                "Disk neither named nor sized",
                f"tpu.data_disks.{index} needs a name or a size_gb, not both",
                "A disk of yours: {name: my-disk}. A new one: {size_gb: 100}.",
                where,
            )
        nodes = file.tpu.queue.nodes if file.tpu.queue is not None else 1
        if disk.mode == "read-write" and accelerator.workers * nodes > 1 and file.tpu.kind == "vm":
            yield Diagnostic(
                "Disk cannot be shared for writing",
                f"{nodes} x {accelerator.name} has {nodes * accelerator.workers} workers"
                if nodes > 1
                else f"{accelerator.name} has {accelerator.workers} workers",
                "Attach it with\n    mode: read-only",
                where,
            )
