"""Files that are copied rather than imported, in a wheel or a checkout."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tpuctl.errors import TpuctlError

PACKAGE = Path(__file__).parent


def templates() -> Path:
    """The folder with templates of stack files and jobs."""
    for folder in (PACKAGE / "templates", PACKAGE.parent / "templates"):
        if folder.is_dir():
            return folder
    raise TpuctlError(
        "Incomplete installation",
        f"no templates next to {PACKAGE}",
        hint="Reinstall tpuctl from its wheel or a complete checkout:\n"
        "    pip install --force-reinstall tpuctl",
    )


def template_names() -> list[str]:
    """The names of all templates: a stack file, a job, or both."""
    folders = (templates() / "stacks", templates() / "jobs")
    return sorted({path.stem for folder in folders for path in folder.iterdir()})


def runtime_lock() -> Path:
    """pip requirements file with exact versions and hashes of all dependencies."""
    for file in (PACKAGE / "runtime.lock", PACKAGE.parent / "requirements" / "runtime.lock"):
        if file.is_file():
            return file
    raise TpuctlError(
        "Incomplete installation",
        f"no runtime.lock next to {PACKAGE}",
        hint="Reinstall tpuctl from its wheel or a complete checkout:\n"
        "    pip install --force-reinstall tpuctl",
    )


def program(name: str) -> str:
    """The source of a program that is copied to machines, such as `watchdog.py`."""
    return shipped_programs()[name].read_text("utf-8")


@cache
def shipped_programs() -> Mapping[str, Path]:
    """All programs that are copied to machines, by their names there."""
    rooms = (PACKAGE / "jobs" / "shipped").glob("*/*.py")
    return {path.name: path for path in sorted(rooms) if path.name != "__init__.py"}
