"""The address range of a TPU node (API v1): validation of a requested one, or a free one.

cloud.google.com/tpu/docs/internal-ip-blocks: a range must be private, written as W.X.Y.Z/N or
W.X.Y.Z, large enough for the type, and must not overlap others in the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network

from tpuctl import catalog
from tpuctl.emulator.state.errors import ApiError, invalid
from tpuctl.emulator.state.locations import auto_range, regions
from tpuctl.emulator.state.store import Store
from tpuctl.emulator.tpu.offerings import error_id

_PRIVATE = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
# Default pool, as in tensorflow/tpu's ctpu.
_POOL = IPv4Network("10.240.0.0/16")


def invalid_argument(detail: str) -> ApiError:
    """An error in API v1's wording, from tensorflow/tpu issue 877."""
    return invalid(f"Cloud TPU received an invalid argument. {detail} {error_id()}")


def read_range(
    text: str, accelerator: catalog.AcceleratorType, network: str, used: Sequence[IPv4Network]
) -> IPv4Network:
    """The requested range, which must be valid, large enough and free.

    The wording of a conflict is Google's (terraform-provider-google issues 10223 and 12523); the
    others are our own.
    """
    prefix = catalog.node_cidr_prefix(accelerator)
    refusal = invalid_argument(f'The field "CIDR Range" cannot be "{text}".')
    try:
        requested = IPv4Network(text if "/" in text else f"{text}/{prefix}")
    except ValueError:
        raise refusal from None
    if requested.prefixlen > prefix or not any(
        requested.subnet_of(private) for private in _PRIVATE
    ):
        raise refusal
    if any(requested.overlaps(other) for other in used):
        raise invalid_argument(
            f'The \'CIDR Range\' value "{text}" on network "{network}" conflicts with another '
            "subnet or object in the (peered) customer network."
        )
    return requested


def choose_range(accelerator: catalog.AcceleratorType, used: Sequence[IPv4Network]) -> IPv4Network:
    """A free range of the size that the type requires."""
    for candidate in _POOL.subnets(new_prefix=catalog.node_cidr_prefix(accelerator)):
        if not any(candidate.overlaps(other) for other in used):
            return candidate
    raise ApiError("RESOURCE_EXHAUSTED", "No address range of the network is free.")


def subnetworks_of(store: Store, network: str) -> list[IPv4Network]:
    """The ranges of the network's subnetworks, automatic and custom."""
    record = store.get_json("compute.networks", network) or {}
    ranges: list[str] = []
    if record.get("autoCreateSubnetworks"):
        ranges += [auto_range(region) for region in regions()]
    name = network.rpartition("/")[2]
    project = network.split("/")[1]
    for row in store.list_json("compute.subnetworks", f"projects/{project}/"):
        if str(row.get("network", "")).rpartition("/")[2] == name:
            ranges.append(str(row["ipCidrRange"]))
    return [IPv4Network(text, strict=False) for text in ranges]
