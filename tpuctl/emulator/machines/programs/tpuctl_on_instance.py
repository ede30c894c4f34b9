"""Provides the tpuctl that runs the local cloud as a program on its instances.

Google's images have no tpuctl. Here a package index may not be available to install it from, so
instances have it preinstalled, as with a custom image.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from tpuctl.assets import PACKAGE

PROGRAM = "tpuctl"
_PACKAGES = PACKAGE.resolve().parent
_SCRIPT = """#!/bin/sh
PYTHONPATH={packages} exec {python} -m {program} "$@"
"""


def interpreter_folders() -> tuple[Path, ...]:
    """The folders that the program needs."""
    return (Path(sys.prefix), _PACKAGES)


def write_program(folder: Path) -> None:
    """Install it on the machine."""
    script = folder / PROGRAM
    text = _SCRIPT.format(
        packages=shlex.quote(str(_PACKAGES)),
        python=shlex.quote(sys.executable),
        program=PROGRAM,
    )
    script.write_text(text, "utf-8")
    script.chmod(0o755)
