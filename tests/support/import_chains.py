"""Chains of imports: how many modules somebody passes who reads on from one to the next."""

from __future__ import annotations

from functools import cache

import grimp

__all__ = ["longest_chain"]


def longest_chain(package: str, within: str = "") -> list[str]:
    """The longest way from import to import, those of types and within functions included.

    Only modules whose names begin with `within` count. There must be no circle among them.
    """
    graph = grimp.build_graph(package, exclude_type_checking_imports=False)

    @cache
    def from_here(module: str) -> tuple[str, ...]:
        found = graph.find_modules_directly_imported_by(module)
        ways = [from_here(each) for each in found if each.startswith(within)]
        return (module, *max(ways, key=len, default=()))

    modules = [module for module in graph.modules if module.startswith(within)]
    return list(max(map(from_here, sorted(modules)), key=len))
