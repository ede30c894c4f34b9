"""From an empty Google Cloud project to a model training on a TPU, and back to zero cost.

`Tpuctl` offers the commands to asyncio programs, `BlockingTpuctl` to scripts and notebooks; `job`
runs a function on a TPU. See docs/guides/automation.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tpuctl.version import __version__

if TYPE_CHECKING:
    from tpuctl.api import BlockingTpuctl, Down, Snapshot, StackStatus, Tpuctl, print_log
    from tpuctl.api.remote_function import RemoteTraceback, job
    from tpuctl.errors import TpuctlError

__all__ = [
    "BlockingTpuctl",
    "Down",
    "RemoteTraceback",
    "Snapshot",
    "StackStatus",
    "Tpuctl",
    "TpuctlError",
    "__version__",
    "job",
    "print_log",
]

MODULES = {
    "RemoteTraceback": "api.remote_function",
    "TpuctlError": "errors",
    "job": "api.remote_function",
}


def __getattr__(name: str) -> Any:
    """Import the API lazily: the command line starts without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"tpuctl.{MODULES.get(name, 'api')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
