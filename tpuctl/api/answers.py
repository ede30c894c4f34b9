"""What is answered about whole stacks: what is left of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.model.status import Remaining

__all__ = ["Down"]


@dataclass(frozen=True)
class Down:
    """What `down` did: the proof that it ends with."""

    remaining: tuple[Remaining, ...]

    @property
    def leaks(self) -> tuple[Remaining, ...]:
        """What still costs money and was not asked to stay."""
        return tuple(one for one in self.remaining if one.state == "remains" and one.is_billable)
