"""Access scopes: what a machine's token is limited to, whatever its account may.

cloud.google.com/compute/docs/access/service-accounts#accesscopesiam; which scopes a method takes is
from Google's discovery documents of the APIs.
"""

from __future__ import annotations

from collections.abc import Set

from tpuctl.emulator.iam.api_access import ApiAccess

__all__ = ["suffices"]

_AUTH = "https://www.googleapis.com/auth/"


def suffices(scopes: Set[str], api: ApiAccess | None, method: str, *, mutating: bool) -> bool:
    """Whether one of the scopes lets a token call a method of an API, None for one not known."""
    wanted = ["cloud-platform"]
    if api is not None and method in api.method_scopes:
        wanted += api.method_scopes[method]
    elif api is not None:
        wanted += api.scopes if mutating else (*api.scopes, *api.reading_scopes)
    return not scopes.isdisjoint(f"{_AUTH}{name}" for name in wanted)
