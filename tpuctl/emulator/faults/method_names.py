"""The method names that faults can match, and suggestions for misspelled ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Protocol

from tpuctl.emulator.faults.fault import matches_method
from tpuctl.emulator.state.errors import invalid
from tpuctl.emulator.state.text import did_you_mean


class _Router(Protocol):
    @property
    def names(self) -> frozenset[str]: ...

    def emulates(self, full_name: str) -> bool: ...


class MethodNames:
    """The names of the router's methods, and of APIs that answer HTTP themselves."""

    def __init__(self, router: _Router, others: Callable[[], Collection[str]]) -> None:
        self._router = router
        self._others = others

    def require(self, pattern: str) -> None:
        """Reject a pattern with a part that matches no emulated method."""
        others = set(self._others())
        names = self._router.names | others
        for part in pattern.split(","):
            glob = part.strip()
            if glob == "mutating":
                continue
            if glob in names:
                matching = [glob]
            else:
                matching = [name for name in names if matches_method(glob, name)]
            if not any(name in others or self._router.emulates(name) for name in matching):
                close = did_you_mean(glob, _name_forms(names))
                raise invalid(
                    f"Unknown method {glob!r}.{close}"
                    " Use a full name or its end, such as CreateNode, Networks/Insert or "
                    "storage.objects.insert; * matches any part."
                )


def _name_forms(names: Collection[str]) -> list[str]:
    """All accepted forms of the names."""
    forms: dict[str, None] = {}
    for name in sorted(names):
        for start in (0, *(match.end() for match in re.finditer(r"[./]", name))):
            forms[name[start:]] = None
    return list(forms)
