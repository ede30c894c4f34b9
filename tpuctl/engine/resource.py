"""The interface that a resource implements for the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tpuctl.model.plan import Change

# Reports what is being waited for, and the completed fraction (0 to 1) if known.
Report = Callable[[str, float | None], None]


class Resource(Protocol):
    """The lifecycle of one cloud resource.

    `observe` returns None if the resource does not exist. `diff` and `removal` compute a change
    from the observation alone, without a request. `revised` is that change once its dependencies
    are done, which may have made it unnecessary. `apply` carries out the change; it is idempotent,
    and adopts or rejects a resource that already exists.
    """

    @property
    def address(self) -> str:
        """`kind/name`, unique in the stack."""
        ...

    @property
    def after(self) -> frozenset[str]:
        """Addresses of its dependencies; deletion goes in reverse order."""
        ...

    @property
    def is_billable(self) -> bool:
        """Whether it is charged for as long as it exists."""
        ...

    async def observe(self) -> Any | None: ...

    def diff(self, observed: Any | None) -> Change:
        """What `up` would do. Raises Conflict if the resource does not belong to the stack."""
        ...

    def removal(self, observed: Any | None) -> Change:
        """What `down` would do."""
        ...

    async def revised(self, change: Change) -> Change:
        """The change as it is still needed."""
        ...

    async def apply(self, change: Change, report: Report) -> str | None:
        """Returns what it did, if that is not just the change."""
        ...
