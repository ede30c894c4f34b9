"""Files that are copied rather than imported, in a wheel or in a checkout."""

from __future__ import annotations

from pathlib import Path

from tpuctl.errors import TpuctlError

__all__ = ["PACKAGE", "program", "runtime_lock", "templates"]

PACKAGE = Path(__file__).parent


def templates() -> Path:
    """The folder with stack files and jobs to copy."""
    for folder in (PACKAGE / "templates", PACKAGE.parent / "templates"):
        if folder.is_dir():
            return folder
    raise TpuctlError(
        "Incomplete installation",
        f"no templates beside {PACKAGE}",
        hint="Install tpuctl anew, from its wheel or a whole checkout:\n"
        "    pip install --force-reinstall tpuctl",
    )


def runtime_lock() -> Path:
    """Exact versions and hashes of all that tpuctl needs, as pip takes them."""
    for file in (PACKAGE / "runtime.lock", PACKAGE.parent / "requirements" / "runtime.lock"):
        if file.is_file():
            return file
    raise TpuctlError(
        "Incomplete installation",
        f"no runtime.lock beside {PACKAGE}",
        hint="Install tpuctl anew, from its wheel or a whole checkout:\n"
        "    pip install --force-reinstall tpuctl",
    )


def program(name: str) -> str:
    """The text of a program that runs on machines as it is, such as `watchdog.py`."""
    return (PACKAGE / "jobs" / "shipped" / name).read_text("utf-8")
