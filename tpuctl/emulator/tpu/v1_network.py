"""The address range of a TPU node (API v1): what may be asked for, and a free one where none is.

cloud.google.com/tpu/docs/internal-ip-blocks: a range lies within the private ones, is written
W.X.Y.Z/N or W.X.Y.Z, has room for the type, and overlaps nothing in the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network

from tpuctl import catalog
from tpuctl.emulator.state.errors import ApiError, invalid
from tpuctl.emulator.state.locations import auto_range, regions
from tpuctl.emulator.state.store import Store
from tpuctl.emulator.tpu.offerings import error_id

__all__ = ["choose_range", "invalid_argument", "read_range", "subnetworks_of"]

_PRIVATE = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
# Where ranges are taken from when none is asked for, as tensorflow/tpu's ctpu did.
_POOL = IPv4Network("10.240.0.0/16")


def invalid_argument(what: str) -> ApiError:
    """A refusal in API v1's words, as tensorflow/tpu issue 877 shows them."""
    return invalid(f"Cloud TPU received an invalid argument. {what} {error_id()}")


def read_range(
    text: str, accelerator: catalog.AcceleratorType, network: str, taken: Sequence[IPv4Network]
) -> IPv4Network:
    """The range asked for, if it is one, large enough and free; else Google's refusal.

    The text of a conflict is Google's (terraform-provider-google issues 10223 and 12523); that of
    the others is ours.
    """
    prefix = catalog.node_cidr_prefix(accelerator)
    refusal = invalid_argument(f'The field "CIDR Range" cannot be "{text}".')
    try:
        wanted = IPv4Network(text if "/" in text else f"{text}/{prefix}")
    except ValueError:
        raise refusal from None
    if wanted.prefixlen > prefix or not any(wanted.subnet_of(private) for private in _PRIVATE):
        raise refusal
    if any(wanted.overlaps(other) for other in taken):
        raise invalid_argument(
            f'The \'CIDR Range\' value "{text}" on network "{network}" conflicts with another '
            "subnet or object in the (peered) customer network."
        )
    return wanted


def choose_range(accelerator: catalog.AcceleratorType, taken: Sequence[IPv4Network]) -> IPv4Network:
    """A free range of the size that the type needs."""
    for candidate in _POOL.subnets(new_prefix=catalog.node_cidr_prefix(accelerator)):
        if not any(candidate.overlaps(other) for other in taken):
            return candidate
    raise ApiError("RESOURCE_EXHAUSTED", "No address range of the network is free.")


def subnetworks_of(store: Store, network: str) -> list[IPv4Network]:
    """The ranges of the network's subnetworks: the automatic ones, and those made by hand."""
    known = store.get_json("compute.networks", network) or {}
    found: list[str] = []
    if known.get("autoCreateSubnetworks"):
        found += [auto_range(region) for region in regions()]
    name = network.rpartition("/")[2]
    project = network.split("/")[1]
    for row in store.list_json("compute.subnetworks", f"projects/{project}/"):
        if str(row.get("network", "")).rpartition("/")[2] == name:
            found.append(str(row["ipCidrRange"]))
    return [IPv4Network(text, strict=False) for text in found]
