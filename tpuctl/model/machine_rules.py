"""Machine types of controllers: which one a region's usual one is, and what cannot be one."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tpuctl.catalog import (
    AcceleratorType,
    machine_is_offered,
    machine_type,
    machine_types,
    nearest,
    region_of,
)
from tpuctl.errors import Diagnostic
from tpuctl.model.schema import StackFile
from tpuctl.model.stack_text import StackText

__all__ = ["machine_problems", "usual_machine_type"]

USUAL = ("n1-standard-1", "e2-standard-2", "n2-standard-2")
# Families without prices in the catalogue (cloud.google.com/compute/docs/machine-resource):
# whether they have such a type is for Compute Engine to say.
OTHER_FAMILIES = re.compile(
    r"custom|a[234]x?|c[234]d?|c4a|f1|g[124]|h3|h4d|m[1-4]|n4[ad]?|t2[ad]|x4|z3"
)
LARGEST_KNOWN = 32  # vCPUs; larger ones exist, and drive no TPU better
SHAPES = re.compile(r"(standard|highmem|highcpu)-(\d+)|custom-\d+-\d+(-ext)?")


def usual_machine_type(region: str) -> str:
    """What `auto` stands for in a region: not every one has the oldest family."""
    known = [found for name in USUAL if (found := machine_type(name)) is not None]
    offered = [one.name for one in known if machine_is_offered(one, region)]
    return next(iter(offered), USUAL[0])


def machine_problems(
    file: StackFile, accelerator: AcceleratorType, text: StackText
) -> Iterator[Diagnostic]:
    """A machine type that there is not, or not in the zones named."""
    wanted = file.controller.machine_type if file.controller is not None else "auto"
    if wanted == "auto":
        return
    where = text.where("controller.machine_type")
    if not _may_exist(wanted):
        like = nearest(wanted, machine_types())
        yield Diagnostic(
            "Unknown machine type",
            f"there is no machine type {wanted}",
            (f"Did you mean {', '.join(like)}?\n" if like else "")
            + "All with a known price:\n    tpuctl prices --machines",
            where,
        )
        return
    known = machine_type(wanted)
    if known is None:
        return
    regions = dict.fromkeys(region_of(zone) for zone in file.tpu.zones or accelerator.zones)
    lacking = [region for region in regions if not machine_is_offered(known, region)]
    if lacking and (file.tpu.zones or len(lacking) == len(regions)):
        yield Diagnostic(
            "Machine type not offered in region",
            f"{', '.join(lacking)} has no {known.family} machines, {wanted} is one",
            f"Use auto, which is {usual_machine_type(lacking[0])} there.",
            where,
        )


def _may_exist(name: str) -> bool:
    family, _, shape = name.partition("-")
    if name in machine_types() or (OTHER_FAMILIES.fullmatch(family) and shape):
        return True
    match = SHAPES.fullmatch(shape)
    if match is None or family not in {one.family for one in machine_types().values()}:
        return False
    return match[2] is None or int(match[2]) > LARGEST_KNOWN
