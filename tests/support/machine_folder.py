"""The programs for machines as they are there: in one folder, from which they import each other."""

from __future__ import annotations

import atexit
import shutil
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tpuctl.assets import shipped_programs


@cache
def machine_folder() -> Path:
    """A folder with all programs, which exists until this process ends."""
    folder = TemporaryDirectory(prefix="machine-")
    atexit.register(folder.cleanup)
    for name, file in shipped_programs().items():
        shutil.copyfile(file, Path(folder.name, name))
    return Path(folder.name)


def let_programs_import_each_other() -> None:
    """Tests also import them from the package, where they have rooms."""
    sys.path += sorted({str(file.parent) for file in shipped_programs().values()})
