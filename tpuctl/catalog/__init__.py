"""What Google offers, offline: TPU types, zones, runtimes, machines and prices, with source.

The data is `tpu.toml` and `compute.toml` beside this file. A type listed in a zone says that it
is offered there, never that there is capacity.
"""

from tpuctl.catalog.compute import (
    MachineType,
    address_price,
    disk_price,
    disk_types,
    machine_is_offered,
    machine_price,
    machine_type,
    machine_types,
    storage_locations,
    storage_price,
    traffic_price,
)
from tpuctl.catalog.flex_start import FLEX_START_DAYS, flex_start_zones
from tpuctl.catalog.prices import HOURS_PER_MONTH, Capacity, Price, Rate, dollars, node_price
from tpuctl.catalog.quota import QuotaLimit, quota_limit, quota_limits
from tpuctl.catalog.tpu import (
    AcceleratorType,
    NodeVersion,
    Runtime,
    accelerator_type,
    accelerator_types,
    nearest,
    node_cidr_prefix,
    node_version,
    node_versions,
    read_date,
    region_of,
    runtime,
    runtime_for,
    runtimes,
    zones,
)

__all__ = [
    "FLEX_START_DAYS",
    "HOURS_PER_MONTH",
    "AcceleratorType",
    "Capacity",
    "MachineType",
    "NodeVersion",
    "Price",
    "QuotaLimit",
    "Rate",
    "Runtime",
    "accelerator_type",
    "accelerator_types",
    "address_price",
    "disk_price",
    "disk_types",
    "dollars",
    "flex_start_zones",
    "machine_is_offered",
    "machine_price",
    "machine_type",
    "machine_types",
    "nearest",
    "node_cidr_prefix",
    "node_price",
    "node_version",
    "node_versions",
    "quota_limit",
    "quota_limits",
    "read_date",
    "region_of",
    "runtime",
    "runtime_for",
    "runtimes",
    "storage_locations",
    "storage_price",
    "traffic_price",
    "zones",
]
