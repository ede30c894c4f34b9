"""Starts the watching of a rehearsed script; Python imports this by itself, before the script.

Where the environment names no rehearsal, and whatever goes wrong here, the script runs as ever. A
sitecustomize that would have been imported without this one is imported after it.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import traceback
from types import ModuleType

__all__: list[str] = []

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "_tpuctl_rehearsal"


def load_package() -> ModuleType:
    """Load this folder as a package; its modules then import one another by relative names."""
    spec = importlib.util.spec_from_file_location(
        NAME, os.path.join(HERE, "__init__.py"), submodule_search_locations=[HERE]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = package
    spec.loader.exec_module(package)
    return package


def start() -> None:
    if not os.environ.get("TPUCTL_REHEARSAL"):
        return
    try:
        load_package()
        importlib.import_module(f"{NAME}.install").begin(os.environ)
    except Exception:
        traceback.print_exc()  # nowhere to write it down yet


def import_next() -> None:
    """Import the sitecustomize that this one hides, if there is any."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


start()
import_next()
