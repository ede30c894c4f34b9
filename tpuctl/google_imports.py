"""What of Google's libraries is loaded.

`compute_service` and `compute_types` load single services of google-cloud-compute, and single
messages.

Its package imports every one of some hundred services (1.3 s of CPU) and their two thousand types
(1.1 s). Here packages take its place that import nothing by themselves, and give each name of the
real ones when they are asked for it: other users of the library in the same program notice no
difference.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from tpuctl.lazy_proto import deferred_messages

__all__ = ["compute_service", "compute_types", "leave_out_async_rest"]

PACKAGE = "google.cloud.compute_v1"
_turn, _begun = threading.RLock(), threading.Event()  # of putting things here; of loading all


def _bare_package() -> None:
    with _turn:
        if PACKAGE in sys.modules:
            return
        _put(PACKAGE, _bare(PACKAGE, _real_name))
        _put(f"{PACKAGE}.types", _bare(f"{PACKAGE}.types", lambda name: getattr(messages, name)))
        messages = deferred_messages(f"{PACKAGE}.types.compute")
        _put(messages.__name__, messages)


def _bare(name: str, missing: Callable[[str], Any]) -> types.ModuleType:
    spec = importlib.util.find_spec(name)  # finds without executing
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError(f"{name} is not installed", name=name)
    module = types.ModuleType(name)
    module.__path__ = list(spec.submodule_search_locations)
    module.__spec__ = spec
    module.__file__ = spec.origin
    module.__getattr__ = missing  # type: ignore[method-assign]
    return module


def _put(name: str, module: types.ModuleType) -> None:
    sys.modules[name] = module
    parent, _, leaf = name.rpartition(".")
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


def leave_out_async_rest() -> None:
    """For programs of ours alone: api_core does without transports that import aiohttp (0.35 s).

    It takes them for not installed, and gives the others as ever.
    """
    for name in ("transports.rest_asyncio", "operations_rest_client_async"):
        sys.modules.setdefault(f"google.api_core.operations_v1.{name}", None)  # type: ignore[arg-type]


def compute_types() -> Any:
    """The module with compute's message types."""
    _bare_package()
    return importlib.import_module(f"{PACKAGE}.types.compute")
