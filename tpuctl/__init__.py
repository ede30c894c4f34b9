"""From an empty Google Cloud project to a model training on a TPU, and back to zero cost.

`Tpuctl` offers the commands to asyncio programs, `BlockingTpuctl` to scripts and notebooks. See
docs/guides/automation.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tpuctl.version import __version__

if TYPE_CHECKING:
    from tpuctl.api import BlockingTpuctl, Down, Snapshot, StackStatus, Tpuctl, print_log
    from tpuctl.errors import TpuctlError

__all__ = [
    "BlockingTpuctl",
    "Down",
    "Snapshot",
    "StackStatus",
    "Tpuctl",
    "TpuctlError",
    "__version__",
    "print_log",
]


def __getattr__(name: str) -> Any:
    """Import the API lazily: the command line starts without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "errors" if name == "TpuctlError" else "api"
    return getattr(import_module(f"tpuctl.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
