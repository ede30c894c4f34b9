"""What the catalogue says of a stack file, before any call."""

from __future__ import annotations

from collections.abc import Iterator

from tpuctl.catalog import (
    AcceleratorType,
    accelerator_type,
    accelerator_types,
    flex_start_zones,
    nearest,
    node_price,
    region_of,
    runtime,
    runtime_for,
    runtimes,
    zones,
)
from tpuctl.errors import Diagnostic
from tpuctl.model.schema import StackFile
from tpuctl.model.stack_options import egress_note, option_problems
from tpuctl.model.stack_text import StackText

__all__ = ["chosen_zones", "problems_of"]


def chosen_zones(file: StackFile, accelerator: AcceleratorType) -> tuple[str, ...]:
    """The zones named, else the cheapest that offers the type with this capacity.

    A zone that there is not is left out: it has nothing that could be looked for.
    """
    if named := tuple(zone for zone in file.tpu.zones if zone in zones()):
        return named
    capacity = file.tpu.capacity
    offering = flex_start_zones(accelerator) if capacity == "flex-start" else ()

    def price(zone: str) -> tuple[float, str]:
        known = node_price(accelerator, zone, capacity=capacity)
        return (known.per_hour if known else float("inf"), zone)

    return (min(offering or accelerator.zones, key=price),)


def problems_of(file: StackFile, text: StackText) -> Iterator[Diagnostic]:
    """Why no stack can be made of the file, as far as the catalogue knows.

    What is there already may be looked at and taken away all the same.
    """
    accelerator = accelerator_type(file.tpu.type)
    if accelerator is None:
        like = nearest(file.tpu.type, accelerator_types())
        yield Diagnostic(
            "Unknown TPU type",
            f"there is no type {file.tpu.type}",
            (f"Did you mean {', '.join(like)}?\n" if like else "")
            + "All of them:\n    tpuctl types",
            text.where("tpu.type"),
        )
        return
    if not accelerator.in_tpu_api:
        yield Diagnostic(
            "TPU type outside the TPU API",
            f"{accelerator.name} is offered through Compute Engine or GKE alone",
            "Choose a v2, v3, v4, v5e, v5p or v6e type.",
            text.where("tpu.type"),
        )
        return
    yield from _zone_problems(file, accelerator, text)
    yield from option_problems(file, accelerator, text)
    if file.tpu.kind == "node":
        return
    if file.tpu.runtime != "auto":
        yield from _runtime_problems(file.tpu.runtime, accelerator, text)
    elif runtime_for(accelerator) is None:
        yield Diagnostic(
            "No runtime for the type",
            f"none is known for {accelerator.name}",
            "Name one with tpu.runtime.",
            text.where("tpu.type"),
        )
    if not isinstance(file.job.workers, str):
        nodes = file.tpu.queue.nodes if file.tpu.queue is not None else 1
        count, of = nodes * accelerator.workers, f"{nodes} x " if nodes > 1 else ""
        for worker in file.job.workers:
            if not 0 <= worker < count:
                yield Diagnostic(
                    "No such worker",
                    f"{of}{accelerator.name} has workers 0 to {count - 1}, not {worker}",
                    "Leave job.workers out to have it chosen.",
                    text.where("job.workers"),
                )


def _zone_problems(
    file: StackFile, accelerator: AcceleratorType, text: StackText
) -> Iterator[Diagnostic]:
    wrong = False
    for index, zone in enumerate(file.tpu.zones):
        if zone not in accelerator.zones:
            wrong = True
            known = zone in zones()
            problem = f"{accelerator.name} is not offered" if known else "unknown zone"
            yield Diagnostic(
                "TPU type not offered in zone",
                f"{zone}: {problem}",
                f"Zones with {accelerator.name}: {', '.join(accelerator.zones)}.",
                text.where(f"tpu.zones.{index}"),
            )
    if wrong or file.bucket.allow_egress:
        return
    location = file.bucket.location.lower()
    chosen = chosen_zones(file, accelerator)
    region = region_of(chosen[0]) if location == "auto" else location
    for index, zone in enumerate(chosen):
        if region_of(zone) != region:
            key = f"tpu.zones.{index}" if location == "auto" else "bucket.location"
            yield Diagnostic(
                "Bucket outside the TPU's region",
                f"in {zone} the node would be in {region_of(zone)}, the bucket is in {region}"
                f"{egress_note(region, region_of(zone))}",
                "Name zones of one region, or accept charged traffic with\n"
                "    bucket: {allow_egress: true}",
                text.where(key),
            )
            return


def _runtime_problems(
    wanted: str, accelerator: AcceleratorType, text: StackText
) -> Iterator[Diagnostic]:
    fitting = [known.version for known in runtimes() if known.fits(accelerator)]
    known = runtime(wanted)
    if known is None:
        like = nearest(wanted, fitting)
        yield Diagnostic(
            "Unknown runtime",
            f"there is no runtime {wanted}",
            (f"Did you mean {', '.join(like)}?\n" if like else "") + "Or use auto.",
            text.where("tpu.runtime"),
        )
    elif not known.fits(accelerator):
        yield Diagnostic(
            "Runtime does not fit the type",
            f"{wanted} is not for {accelerator.name}",
            f"Use auto, which is {fitting[0]}." if fitting else "",
            text.where("tpu.runtime"),
        )
