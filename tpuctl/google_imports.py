"""Lazy imports of Google's libraries.

`compute_service` and `compute_types` load only the services and messages of google-cloud-compute
that are used. Importing its package loads some hundred services (1.3 s of CPU) and their two
thousand types (1.1 s). Instead, this module registers packages in its place that import nothing
until a name is accessed; other users of the library in the same program notice no difference.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from tpuctl.lazy_proto import lazy_messages

__all__ = ["compute_service", "compute_types", "disable_async_rest"]

PACKAGE = "google.cloud.compute_v1"
_lock, _is_loading = threading.RLock(), threading.Event()  # the second: the whole package is loaded


def _register_lazy_package() -> None:
    with _lock:
        if PACKAGE in sys.modules:
            return
        _register(PACKAGE, _lazy_module(PACKAGE, _real_name))
        _register(
            f"{PACKAGE}.types",
            _lazy_module(f"{PACKAGE}.types", lambda name: getattr(messages, name)),
        )
        messages = lazy_messages(f"{PACKAGE}.types.compute")
        _register(messages.__name__, messages)


def _lazy_module(name: str, get_attribute: Callable[[str], Any]) -> types.ModuleType:
    spec = importlib.util.find_spec(name)  # does not execute the module
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError(f"{name} is not installed", name=name)
    module = types.ModuleType(name)
    module.__path__ = list(spec.submodule_search_locations)
    module.__spec__ = spec
    module.__file__ = spec.origin
    module.__getattr__ = get_attribute  # type: ignore[method-assign]
    return module


def _register(name: str, module: types.ModuleType) -> None:
    sys.modules[name] = module
    parent, _, leaf = name.rpartition(".")
    setattr(importlib.import_module(parent), leaf, module)


def _real_name(name: str) -> Any:
    """An attribute of the real package, which is loaded under another name on first use."""
    if name.startswith("__") or importlib.util.find_spec(f"{PACKAGE}.{name}") is not None:
        return _raise_missing(name)  # submodules are imported explicitly
    bare = sys.modules[PACKAGE]
    with _lock:  # other threads wait until it is loaded; the package's own imports do not
        if not _is_loading.is_set():
            _is_loading.set()
            _load_whole(bare)
    return vars(bare)[name] if name in vars(bare) else _raise_missing(name)


def _load_whole(bare: types.ModuleType) -> None:
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None and spec.loader is not None
    whole = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(whole)
    for name, value in vars(whole).items():
        if not name.startswith("__"):
            setattr(bare, name, value)


def _raise_missing(name: str) -> Any:
    raise AttributeError(f"module {PACKAGE!r} has no attribute {name!r}")


def compute_service(name: str) -> Any:
    """The module of one service, as in `compute_service("networks").NetworksClient`."""
    _register_lazy_package()
    return importlib.import_module(f"{PACKAGE}.services.{name}")


def disable_async_rest() -> None:
    """Keep api_core from importing its async REST transports, which import aiohttp (0.35 s).

    It treats them as not installed. Only for programs that are entirely ours.
    """
    for name in ("transports.rest_asyncio", "operations_rest_client_async"):
        sys.modules.setdefault(f"google.api_core.operations_v1.{name}", None)  # type: ignore[arg-type]


def compute_types() -> Any:
    """The module with compute's message types."""
    _register_lazy_package()
    return importlib.import_module(f"{PACKAGE}.types.compute")
