"""Files that are copied rather than imported, in a wheel or in a checkout."""

from __future__ import annotations

from pathlib import Path

from tpuctl.errors import TpuctlError

__all__ = ["templates"]

PACKAGE = Path(__file__).parent


def templates() -> Path:
    """The folder with stack files and jobs to copy."""
    for folder in (PACKAGE / "templates", PACKAGE.parent / "templates"):
        if folder.is_dir():
            return folder
    raise TpuctlError("Incomplete installation", f"no templates beside {PACKAGE}")
