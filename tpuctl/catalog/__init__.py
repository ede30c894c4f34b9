"""Offline catalog of what Google offers: TPU types, zones, runtimes, machine types and prices.

The data is in `tpu.json` and `compute.toml`, which name their sources. A zone listed for a type
offers it; that does not mean it has capacity.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpuctl.catalog.compute import (
        MachineType,
        address_price,
        disk_price,
        disk_types,
        machine_is_offered,
        machine_price,
        machine_type,
        machine_types,
        nat_price,
        nat_traffic_price,
        storage_locations,
        storage_price,
        traffic_price,
    )
    from tpuctl.catalog.compute_tpu import (
        API_NAMES,
        APIS,
        TPU_MACHINE_FAMILIES,
        AnnouncedTpu,
        Api,
        Architecture,
        TpuMachine,
        TpuMachineType,
        announced_tpu,
        apis_of,
        calendar_zones,
        flex_start_zones,
        host_architecture,
        is_tpu_machine,
        topologies_of,
        tpu_machine,
        tpu_machine_type,
        tpu_machine_types,
        zones_of,
    )
    from tpuctl.catalog.flex_start import CALENDAR_DAYS, FLEX_START_DAYS
    from tpuctl.catalog.gke import GKE_GENERATIONS, gke_accelerator
    from tpuctl.catalog.offers import (
        PRICED_CAPACITIES,
        Choice,
        Offer,
        PriceOf,
        cheapest,
        cheapest_to_train,
        cheapest_zones,
        choose,
        generations,
        matching,
        offers_of,
    )
    from tpuctl.catalog.prices import HOURS_PER_MONTH, Capacity, Price, Rate, node_price
    from tpuctl.catalog.quota import QuotaLimit, quota_limit, quota_limits, usual_quota
    from tpuctl.catalog.software import FIRST_LIBTPU, TENSORFLOW_GENERATIONS
    from tpuctl.catalog.tpu import (
        ALLOWLIST_ZONES,
        AcceleratorType,
        NodeVersion,
        Runtime,
        accelerator_type,
        accelerator_types,
        base_runtime,
        node_cidr_prefix,
        node_version,
        node_versions,
        read_date,
        region_of,
        regions,
        runtime,
        runtime_for,
        runtimes,
        unlisted_runtime,
        zones,
    )
    from tpuctl.catalog.type_names import canonical_type, nearest_types, type_named, type_pattern

__all__ = [
    "ALLOWLIST_ZONES",
    "APIS",
    "API_NAMES",
    "CALENDAR_DAYS",
    "FIRST_LIBTPU",
    "FLEX_START_DAYS",
    "GKE_GENERATIONS",
    "HOURS_PER_MONTH",
    "PRICED_CAPACITIES",
    "TENSORFLOW_GENERATIONS",
    "TPU_MACHINE_FAMILIES",
    "AcceleratorType",
    "AnnouncedTpu",
    "Api",
    "Architecture",
    "Capacity",
    "Choice",
    "MachineType",
    "NodeVersion",
    "Offer",
    "Price",
    "PriceOf",
    "QuotaLimit",
    "Rate",
    "Runtime",
    "TpuMachine",
    "TpuMachineType",
    "accelerator_type",
    "accelerator_types",
    "address_price",
    "announced_tpu",
    "apis_of",
    "base_runtime",
    "calendar_zones",
    "canonical_type",
    "cheapest",
    "cheapest_to_train",
    "cheapest_zones",
    "choose",
    "disk_price",
    "disk_types",
    "flex_start_zones",
    "generations",
    "gke_accelerator",
    "host_architecture",
    "is_tpu_machine",
    "machine_is_offered",
    "machine_price",
    "machine_type",
    "machine_types",
    "matching",
    "nat_price",
    "nat_traffic_price",
    "nearest_types",
    "node_cidr_prefix",
    "node_price",
    "node_version",
    "node_versions",
    "offers_of",
    "quota_limit",
    "quota_limits",
    "read_date",
    "region_of",
    "regions",
    "runtime",
    "runtime_for",
    "runtimes",
    "storage_locations",
    "storage_price",
    "topologies_of",
    "tpu_machine",
    "tpu_machine_type",
    "tpu_machine_types",
    "traffic_price",
    "type_named",
    "type_pattern",
    "unlisted_runtime",
    "usual_quota",
    "zones",
    "zones_of",
]

# In this order: `tpuctl check` needs only the first two.
MODULES = (
    *("tpu", "software", "type_names", "compute_tpu", "flex_start", "prices", "offers"),
    *("gke", "quota", "compute"),
)


def __getattr__(name: str) -> Any:
    """Import only the modules up to the one that defines the name."""
    for module_name in MODULES if name in __all__ else ():
        module = import_module(f"{__name__}.{module_name}")
        if name in module.__all__:
            return globals().setdefault(name, getattr(module, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
