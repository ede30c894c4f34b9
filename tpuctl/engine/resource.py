"""What the engine asks of a resource."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tpuctl.model.plan import Change

__all__ = ["Report", "Resource"]

# Tells what is waited for now, and how far it is (0 to 1) where that is known.
Report = Callable[[str, float | None], None]


class Resource(Protocol):
    """The whole life of one thing in the cloud.

    `observe` answers None when the thing is not there. `diff` and `removal` decide, without
    asking anybody, from what was observed. `apply` carries out such a change, is safe to repeat,
    and adopts or refuses what it finds already made.
    """

    @property
    def address(self) -> str:
        """`kind/name`, unique in the stack."""
        ...

    @property
    def after(self) -> frozenset[str]:
        """Addresses that must exist first; deletion goes the other way."""
        ...

    @property
    def is_billable(self) -> bool:
        """Whether it costs money by merely existing."""
        ...

    async def observe(self) -> Any | None: ...

    def diff(self, observed: Any | None) -> Change:
        """What `up` would do. Raises Conflict for a thing that is not the stack's."""
        ...

    def removal(self, observed: Any | None) -> Change:
        """What `down` would do."""
        ...

    async def apply(self, change: Change, report: Report) -> None: ...
