"""Loads single services of google-cloud-compute.

Its package imports every one of some hundred services (1.3 s of CPU); a bare package in its
place lets one of them be imported alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from typing import Any

__all__ = ["compute_service", "compute_types"]

PACKAGE = "google.cloud.compute_v1"


def _bare_package() -> None:
    if PACKAGE in sys.modules:
        return
    spec = importlib.util.find_spec(PACKAGE)  # finds without executing
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError(f"{PACKAGE} is not installed")
    module = types.ModuleType(PACKAGE)
    module.__path__ = list(spec.submodule_search_locations)
    module.__spec__ = spec
    module.__file__ = spec.origin
    sys.modules[PACKAGE] = module
    parent, _, leaf = PACKAGE.rpartition(".")
    setattr(importlib.import_module(parent), leaf, module)


def compute_service(name: str) -> Any:
    """The module of one service, as in `compute_service("networks").NetworksClient`."""
    _bare_package()
    return importlib.import_module(f"{PACKAGE}.services.{name}")


def compute_types() -> Any:
    """The module with compute's message types."""
    _bare_package()
    return importlib.import_module(f"{PACKAGE}.types.compute")
