"""The access rules of an API, read by the guard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from tpuctl.emulator.iam.required_permissions import Need, PolicyResources
from tpuctl.emulator.state.errors import ApiError

_AUTH = "https://www.googleapis.com/auth/"


def plain_denial(method: str, need: Need, email: str, request: Any) -> ApiError:
    """PERMISSION_DENIED without naming the missing permission."""
    return ApiError("PERMISSION_DENIED", "The caller does not have permission")


@dataclass(frozen=True)
class ApiAccess:
    """Access rules of an API. Its methods are in `permissions.toml` of the API's folder."""

    package: str  # the folder, "tpuctl.emulator.tpu"
    host: str  # "tpu.googleapis.com"
    methods: tuple[str, ...]  # prefixes of its methods' full names
    # Makes the error for a denied call from method, need, caller's email and request.
    refuse: Callable[[str, Need, str, Any], ApiError] = plain_denial
    # The requirement of a table entry; None for APIs whose requests all contain resource names.
    need: Callable[[PolicyResources, str, str, Any], Need | None] | None = None
    # Functions for `+RULE` in the table.
    rules: Mapping[str, Callable[[PolicyResources, Any], Iterator[Need]]] = field(
        default_factory=dict
    )
    # Access scopes, besides cloud-platform, of all methods, of read-only methods, and of single
    # methods that differ: from Google's discovery documents.
    scopes: tuple[str, ...] = ()
    read_scopes: tuple[str, ...] = ()
    method_scopes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Service agents: role and email of Google's accounts that are granted when a project enables
    # the API; {} is the project number.
    agents: Sequence[tuple[str, str]] = ()

    def has(self, method: str) -> bool:
        """Whether the API has the method, `package.Service/Method` or `storage.objects.get`."""
        return method.startswith(self.methods)


def scopes_allow(scopes: Set[str], api: ApiAccess | None, method: str, *, mutating: bool) -> bool:
    """Whether one of the token's scopes covers a method; `api` is None if the API is unknown.

    Scopes limit a machine's token regardless of its account's roles:
    cloud.google.com/compute/docs/access/service-accounts#accesscopesiam.
    """
    names = ["cloud-platform"]
    if api is not None and method in api.method_scopes:
        names += api.method_scopes[method]
    elif api is not None:
        names += api.scopes if mutating else (*api.scopes, *api.read_scopes)
    return not scopes.isdisjoint(f"{_AUTH}{name}" for name in names)
