"""Loads single services of google-cloud-compute.

Its package imports every one of some hundred services (1.3 s of CPU). Here a package takes its
place that imports nothing by itself, and gives each name of the real one when it is asked for it:
other users of the library in the same program notice no difference.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
import types
from typing import Any

__all__ = ["compute_service", "compute_types"]

PACKAGE = "google.cloud.compute_v1"
_turn, _begun = threading.RLock(), threading.Event()  # of loading the whole package


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
    module.__getattr__ = _real_name  # type: ignore[method-assign]
    sys.modules[PACKAGE] = module
    parent, _, leaf = PACKAGE.rpartition(".")
    setattr(importlib.import_module(parent), leaf, module)


def _real_name(name: str) -> Any:
    """What the real package calls so: it is loaded under another name, once something asks."""
    if name.startswith("__") or importlib.util.find_spec(f"{PACKAGE}.{name}") is not None:
        return _missing(name)  # a module of the package is imported by whoever asks for it
    bare = sys.modules[PACKAGE]
    with _turn:  # other threads wait until all is there; the package's own imports do not
        if not _begun.is_set():
            _begun.set()
            _load_whole(bare)
    return vars(bare)[name] if name in vars(bare) else _missing(name)


def _load_whole(bare: types.ModuleType) -> None:
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None and spec.loader is not None
    whole = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(whole)
    for found, value in vars(whole).items():
        if not found.startswith("__"):
            setattr(bare, found, value)


def _missing(name: str) -> Any:
    raise AttributeError(f"module {PACKAGE!r} has no attribute {name!r}")


def compute_service(name: str) -> Any:
    """The module of one service, as in `compute_service("networks").NetworksClient`."""
    _bare_package()
    return importlib.import_module(f"{PACKAGE}.services.{name}")


def compute_types() -> Any:
    """The module with compute's message types."""
    _bare_package()
    return importlib.import_module(f"{PACKAGE}.types.compute")
