"""Starts the shim; Python imports this module automatically before the script.

Without a rehearsal in the environment, or if anything fails here, the script runs unobserved. A
sitecustomize that this one hides is imported after it.
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
PACKAGE = "_tpuctl_rehearsal"


def load_package() -> ModuleType:
    """Load this folder as a package, so that its modules can use relative imports."""
    spec = importlib.util.spec_from_file_location(
        PACKAGE, os.path.join(HERE, "__init__.py"), submodule_search_locations=[HERE]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    return package


def start() -> None:
    if not os.environ.get("TPUCTL_REHEARSAL"):
        return
    try:
        load_package()
        importlib.import_module(f"{PACKAGE}.install").start(os.environ)
    except Exception:
        traceback.print_exc()  # there is no observation file yet


def import_next() -> None:
    """Import the sitecustomize that this one hides, if any."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


start()
import_next()
