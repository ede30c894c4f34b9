"""Who may call one of Google's APIs, as the API itself tells it to the guard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from tpuctl.emulator.iam.required_permissions import Need, Places
from tpuctl.emulator.state.errors import ApiError

__all__ = ["ApiAccess", "denied_plainly", "suffices"]

_AUTH = "https://www.googleapis.com/auth/"


def denied_plainly(method: str, need: Need, email: str, request: Any) -> ApiError:
    """Without a word about what is missing."""
    return ApiError("PERMISSION_DENIED", "The caller does not have permission")


@dataclass(frozen=True)
class ApiAccess:
    """What the guard asks of an API. `permissions.toml` in the API's folder has its methods."""

    package: str  # the folder, as "tpuctl.emulator.tpu"
    host: str  # "tpu.googleapis.com"
    methods: tuple[str, ...]  # what the full names of its methods begin with
    # How it refuses a caller, by method, need, the caller's e-mail and request.
    refuse: Callable[[str, Need, str, Any], ApiError] = denied_plainly
    # What a method named in the table needs; None for an API whose requests all name resources.
    need: Callable[[Places, str, str, Any], Need | None] | None = None
    # What `+RULE` in the table stands for.
    rules: Mapping[str, Callable[[Places, Any], Iterator[Need]]] = field(default_factory=dict)
    # Access scopes, beside cloud-platform, that all of its methods take, that reading ones do as
    # well, and where it is otherwise, of single methods: Google's discovery documents.
    scopes: tuple[str, ...] = ()
    reading_scopes: tuple[str, ...] = ()
    method_scopes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Roles, and Google's own accounts that get them in a project which enables the API; {} is the
    # number of the project.
    agents: Sequence[tuple[str, str]] = ()

    def has(self, method: str) -> bool:
        """Whether a method, `package.Service/Method` or `storage.objects.get`, is of this API."""
        return method.startswith(self.methods)


def suffices(scopes: Set[str], api: ApiAccess | None, method: str, *, mutating: bool) -> bool:
    """Whether one of the scopes lets a token call a method of an API, None for one not known.

    They are what a machine's token is limited to, whatever its account may:
    cloud.google.com/compute/docs/access/service-accounts#accesscopesiam.
    """
    wanted = ["cloud-platform"]
    if api is not None and method in api.method_scopes:
        wanted += api.method_scopes[method]
    elif api is not None:
        wanted += api.scopes if mutating else (*api.scopes, *api.reading_scopes)
    return not scopes.isdisjoint(f"{_AUTH}{name}" for name in wanted)
