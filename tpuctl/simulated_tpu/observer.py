"""What the hooks report, to a rehearsal if there is one."""

from __future__ import annotations

TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Observer:
    """Records nothing, as on a machine; a rehearsal has its own."""

    def attempt(self, action: str, do: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of `do`; if it raises, report the failure and return None."""
        try:
            return do(*arguments)
        except Exception:
            import traceback

            traceback.print_exc()
            return None

    def write(self, kind: str, **fields: Any) -> None:
        """Record that the script did something."""

    def line(self) -> Any:
        """The line of the script that is executed."""
        return None
