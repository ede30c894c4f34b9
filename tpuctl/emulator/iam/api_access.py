"""Who may call one of Google's APIs, as the API itself tells it to the guard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tpuctl.emulator.iam.refusals import denied_plainly
from tpuctl.emulator.iam.required_permissions import Need, Places
from tpuctl.emulator.state.errors import ApiError

__all__ = ["ApiAccess"]


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
