"""From an empty Google Cloud project to a model training on a TPU, and back to zero cost.

`Tpuctl` is what the command line does, for programs with asyncio; `BlockingTpuctl` the same for
scripts and notebooks. See docs/python.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpuctl.api import BlockingTpuctl as BlockingTpuctl
    from tpuctl.api import Down as Down
    from tpuctl.api import Moment as Moment
    from tpuctl.api import StackStatus as StackStatus
    from tpuctl.api import Tpuctl as Tpuctl
    from tpuctl.api import print_log as print_log
    from tpuctl.errors import TpuctlError as TpuctlError

__all__ = [
    "BlockingTpuctl",
    "Down",
    "Moment",
    "StackStatus",
    "Tpuctl",
    "TpuctlError",
    "__version__",
    "print_log",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The interface, imported when it is used: the command line starts without it."""
    if name == "TpuctlError":
        from tpuctl.errors import TpuctlError

        return TpuctlError
    if name in __all__:
        from tpuctl import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
