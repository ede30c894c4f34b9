"""Calls a function after a module with a given name is imported."""

from __future__ import annotations

import sys

from .script_calls import call_script

TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class AfterImport:
    """Calls a module's function after its code has run; functions must not raise."""

    def __init__(self, functions: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self.functions = dict(functions)
        self._searching: set[str] = set()

    def install(self) -> None:
        """Observe imports from now on; functions of modules already imported are called now."""
        sys.meta_path.insert(0, self)
        for name in list(self.functions):
            if name in sys.modules:
                self.functions.pop(name)(sys.modules[name])

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.functions or fullname in self._searching:
            return None
        import importlib.util

        self._searching.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching.discard(fullname)
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            call_script(load, module)
            function = self.functions.pop(fullname, None)
            if function is not None:
                function(module)

        loader.exec_module = exec_module
        return spec
