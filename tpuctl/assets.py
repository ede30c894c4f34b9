"""Files that are shipped or copied rather than imported, in a wheel or in a checkout."""

from __future__ import annotations

from pathlib import Path

from tpuctl.errors import TpuctlError

__all__ = ["supervisor", "templates"]

PACKAGE = Path(__file__).parent


def templates() -> Path:
    """The folder with stack files, jobs and pipelines to copy."""
    for folder in (PACKAGE / "templates", PACKAGE.parent / "templates"):
        if folder.is_dir():
            return folder
    raise TpuctlError("Incomplete installation", f"no templates beside {PACKAGE}")


def supervisor() -> Path:
    """The one file that runs on the workers."""
    return PACKAGE / "jobs" / "supervisor.py"
