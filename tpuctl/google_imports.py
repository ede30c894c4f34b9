"""Lazy imports of Google's libraries.

A client is imported with its own service and messages only: the packages of Google's clients
import all of their services and asynchronous clients (Compute Engine's some hundred services and
two thousand types: 1.3 s and 1.1 s of CPU). Instead, this module registers modules in their place
that import nothing until a name is accessed; other users of the libraries in the same program
notice no difference.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
import types
from typing import Any

from tpuctl.lazy_proto import lazy_messages

COMPUTE = "google.cloud.compute_v1"
_lock = threading.RLock()


class _Module(types.ModuleType):
    """A module whose code does not run; if it is a package, its submodules can be imported."""

    def __init__(self, name: str) -> None:
        spec = importlib.util.find_spec(name)  # does not execute the module
        if spec is None:
            raise ImportError(f"{name} is not installed", name=name)
        super().__init__(name)
        if spec.submodule_search_locations is not None:
            self.__path__ = list(spec.submodule_search_locations)
        self.__spec__ = spec
        self.__file__ = spec.origin

    def has_submodule(self, name: str) -> bool:
        """Whether it is a package with a submodule of this name, imported or not."""
        if "__path__" not in vars(self):
            return False
        return importlib.util.find_spec(f"{self.__name__}.{name}") is not None


class _LazyModule(_Module):
    """A module whose code runs when a name in it is first accessed."""

    _is_loading = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self.has_submodule(name):
            return self._raise_missing(name)  # submodules are imported explicitly
        with _lock:  # other threads wait until it is loaded; the package's own imports do not
            if not self._is_loading:
                self._is_loading = True
                self._load()
        names = vars(self)
        return names[name] if name in names else self._raise_missing(name)

    def _load(self) -> None:
        """Run the module's code under its own name, and copy the names that it defines."""
        spec = importlib.util.find_spec(self.__name__)
        assert spec is not None and spec.loader is not None
        whole = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(whole)
        for name, value in vars(whole).items():
            if not name.startswith("__"):
                setattr(self, name, value)

    def _raise_missing(self, name: str) -> Any:
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


def _register_lazily(*names: str) -> None:
    """Register lazy modules, each after its parent, unless the modules are already loaded."""
    with _lock:
        for name in names:
            if name not in sys.modules:
                _register(name, _LazyModule(name))


def _register(name: str, module: types.ModuleType) -> None:
    sys.modules[name] = module
    parent, _, leaf = name.rpartition(".")
    setattr(importlib.import_module(parent), leaf, module)


def _register_compute() -> None:
    with _lock:
        if COMPUTE in sys.modules:
            return
        _register_lazily(COMPUTE)
        names = _Module(f"{COMPUTE}.types")
        _register(names.__name__, names)
        messages = lazy_messages(f"{COMPUTE}.types.compute")
        _register(messages.__name__, messages)
        names.__getattr__ = messages.__getattr__  # type: ignore[method-assign]


def client_module(package: str, service: str) -> Any:
    """The module of a service's client: `client_module("google.cloud.tpu_v2", "tpu").TpuClient`."""
    _register_lazily(package, f"{package}.types", f"{package}.services.{service}")
    return importlib.import_module(f"{package}.services.{service}.client")


def compute_service(name: str) -> Any:
    """The module of one service, as in `compute_service("networks").NetworksClient`."""
    _register_compute()
    return importlib.import_module(f"{COMPUTE}.services.{name}")


def defer_signing() -> None:
    """Let google.auth import `cryptography` only to sign or verify tokens, as with the key of a
    service account. Its transports import it for any credentials (7% of the CPU of `status`)."""
    _register_lazily("google.auth.crypt", "google.auth.iam", "google.auth.jwt")


def disable_async_rest() -> None:
    """Keep api_core from importing its async REST transports, which import aiohttp (0.35 s).

    It treats them as not installed. Only for programs that are entirely ours.
    """
    for name in ("transports.rest_asyncio", "operations_rest_client_async"):
        sys.modules.setdefault(f"google.api_core.operations_v1.{name}", None)  # type: ignore[arg-type]


def compute_types() -> Any:
    """The module with compute's message types."""
    _register_compute()
    return importlib.import_module(f"{COMPUTE}.types.compute")
