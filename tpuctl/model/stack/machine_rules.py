"""Rules about the controller's machine type, and about the network of the machines."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator

from tpuctl.catalog import (
    AcceleratorType,
    machine_is_offered,
    machine_type,
    machine_types,
    region_of,
)
from tpuctl.errors import Diagnostic
from tpuctl.model.stack.schema import StackFile
from tpuctl.spelling import nearest

DEFAULT_MACHINE_TYPES = ("n1-standard-1", "e2-standard-2", "n2-standard-2")
# Families without prices in the catalog (cloud.google.com/compute/docs/machine-resource):
# their types are left to Compute Engine to check.
OTHER_FAMILIES = re.compile(
    r"custom|a[234]x?|c[234]d?|c4a|f1|g[124]|h3|h4d|m[1-4]|n4[ad]?|t2[ad]|x4|z3"
)
MAX_CATALOG_VCPUS = 32  # larger types exist, but are not in the catalog
SHAPES = re.compile(r"(standard|highmem|highcpu)-(\d+)|custom-\d+-\d+(-ext)?")


def default_machine_type(region: str) -> str:
    """The machine type that `auto` means in a region; not every region has n1."""
    machines = [
        machine for name in DEFAULT_MACHINE_TYPES if (machine := machine_type(name)) is not None
    ]
    offered = [machine.name for machine in machines if machine_is_offered(machine, region)]
    return next(iter(offered), DEFAULT_MACHINE_TYPES[0])


def machine_problems(
    file: StackFile, accelerator: AcceleratorType, where: Callable[[str], str]
) -> Iterator[Diagnostic]:
    """Machine types that do not exist, or are not offered in the zones."""
    name = file.controller.machine_type if file.controller is not None else "auto"
    if name == "auto":
        return
    if not _may_exist(name):
        like = nearest(name, machine_types())
        yield Diagnostic(
            "Unknown machine type",
            f"machine type {name} does not exist",
            (f"Did you mean {', '.join(like)}?\n" if like else "")
            + "To list machine types with prices:\n    tpuctl prices --machines",
            where("controller.machine_type"),
        )
        return
    machine = machine_type(name)
    if machine is None:
        return
    regions = dict.fromkeys(region_of(zone) for zone in file.tpu.zones or accelerator.zones)
    lacking = [region for region in regions if not machine_is_offered(machine, region)]
    if lacking and (file.tpu.zones or len(lacking) == len(regions)):
        yield Diagnostic(
            "Machine type not offered in region",
            f"{', '.join(lacking)} has no {machine.family} machines such as {name}",
            f"Use auto, which is {default_machine_type(lacking[0])} there.",
            where("controller.machine_type"),
        )


def _may_exist(name: str) -> bool:
    family, _, shape = name.partition("-")
    if name in machine_types() or (OTHER_FAMILIES.fullmatch(family) and shape):
        return True
    match = SHAPES.fullmatch(shape)
    if match is None or family not in {machine.family for machine in machine_types().values()}:
        return False
    return match[2] is None or int(match[2]) > MAX_CATALOG_VCPUS


def network_problems(file: StackFile, where: Callable[[str], str]) -> Iterator[Diagnostic]:
    """Invalid values and combinations of `network.ssh`, `nat` and `allow_from`."""
    if file.network.nat and file.network.ssh == "external":
        yield Diagnostic(
            "Cloud NAT with external addresses",
            "network.nat has no effect with ssh: external: machines with external addresses reach "
            "the internet through them",
            "Remove nat, or use\n    network: {ssh: iap, nat: true}",
            where("network.nat"),
        )
    if file.network.allow_from and file.network.ssh == "iap":
        yield Diagnostic(
            "Address ranges with IAP",
            "network.allow_from has no effect with ssh: iap: only Identity-Aware Proxy may "
            "connect, and roles decide who may use it",
            "Remove allow_from, or use\n    network: {ssh: external}",
            where("network.allow_from"),
        )
    for entry in file.network.allow_from:
        try:
            range_ = ipaddress.ip_network(entry)
        except ValueError as error:
            yield Diagnostic(
                "Invalid address range",
                f"network.allow_from: {entry}: {error}",
                "For example\n    network: {allow_from: [203.0.113.0/24, 198.51.100.7]}",
                where("network.allow_from"),
            )
            continue
        if range_.version != 4:
            yield Diagnostic(
                "IPv6 address range",
                f"network.allow_from: {entry}: the machines have only IPv4 addresses, so IPv6 "
                "clients cannot connect",
                "Use IPv4 addresses, or IAP:\n    network: {ssh: iap}",
                where("network.allow_from"),
            )
