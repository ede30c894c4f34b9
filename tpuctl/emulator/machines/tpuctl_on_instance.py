"""The tpuctl that runs the local cloud, as a program on its instances.

Google's images have none. Here there may be no package index to install one from, so that images
of instances have it beforehand, as an image of the user's own might.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from tpuctl.assets import PACKAGE

__all__ = ["PROGRAM", "interpreter_folders", "write_program"]

PROGRAM = "tpuctl"
_PACKAGES = PACKAGE.resolve().parent
_SCRIPT = """#!/bin/sh
PYTHONPATH={packages} exec {python} -m {program} "$@"
"""


def interpreter_folders() -> tuple[Path, ...]:
    """What the program needs to see, wherever it lies."""
    return (Path(sys.prefix), _PACKAGES)


def write_program(folder: Path) -> None:
    """Put it among the machine's programs."""
    script = folder / PROGRAM
    text = _SCRIPT.format(
        packages=shlex.quote(str(_PACKAGES)),
        python=shlex.quote(sys.executable),
        program=PROGRAM,
    )
    script.write_text(text, "utf-8")
    script.chmod(0o755)
