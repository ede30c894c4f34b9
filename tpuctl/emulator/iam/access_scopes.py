"""Access scopes: what a machine's token is limited to, whatever its account may.

cloud.google.com/compute/docs/access/service-accounts#accesscopesiam; which scopes a method takes is
from Google's discovery documents of the APIs.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

__all__ = ["suffices"]

_AUTH = "https://www.googleapis.com/auth/"
# By what a method's name starts with: scopes for all methods, and those for reading ones alone.
_SCOPES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "storage.": (
        ("devstorage.full_control", "devstorage.read_write"),
        ("devstorage.read_only", "cloud-platform.read-only"),
    ),
    "google.cloud.compute.": (("compute",), ("compute.readonly",)),
    "google.cloud.tpu.": (("cloud.tpu",), ()),
    "google.cloud.location.": (("cloud.tpu",), ()),
    "google.longrunning.": (("cloud.tpu",), ()),
    "google.cloud.resourcemanager.": ((), ("cloud-platform.read-only",)),
    "google.cloudresourcemanager.": ((), ("cloud-platform.read-only",)),
    "google.api.serviceusage.": (("service.management",), ("cloud-platform.read-only",)),
    "google.cloud.billing.": (("cloud-billing",), ("cloud-billing.readonly",)),
}
# What metadata and policies say takes the widest scope of Cloud Storage.
_FULL_CONTROL = (
    "storage.buckets.getIamPolicy",
    "storage.buckets.patch",
    "storage.buckets.setIamPolicy",
    "storage.buckets.update",
    "storage.objects.patch",
    "storage.objects.restore",
    "storage.objects.update",
)


def suffices(scopes: Set[str], method: str, *, mutating: bool) -> bool:
    """Whether one of the scopes lets a token call a method."""
    wanted = ["cloud-platform"]
    if method in _FULL_CONTROL:
        wanted.append("devstorage.full_control")
    else:
        for start, (all_methods, reading) in _SCOPES.items():
            if method.startswith(start):
                wanted += all_methods if mutating else (*all_methods, *reading)
    return not scopes.isdisjoint(f"{_AUTH}{name}" for name in wanted)
