"""What Google offers, offline: TPU types, zones, runtimes and prices, with source and date.

The data is `tpu.toml` beside this file. A type listed in a zone says that it is offered there,
never that there is capacity.
"""

from tpuctl.catalog.prices import Price, node_price
from tpuctl.catalog.tpu import (
    AcceleratorType,
    Runtime,
    accelerator_type,
    accelerator_types,
    nearest,
    read_date,
    region_of,
    runtime,
    runtime_for,
    runtimes,
    zones,
)

__all__ = [
    "AcceleratorType",
    "Price",
    "Runtime",
    "accelerator_type",
    "accelerator_types",
    "nearest",
    "node_price",
    "read_date",
    "region_of",
    "runtime",
    "runtime_for",
    "runtimes",
    "zones",
]
