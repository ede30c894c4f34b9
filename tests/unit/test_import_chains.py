"""The longest chains of imports do not grow."""

from __future__ import annotations

import pytest

from tests.support.import_chains import longest_chain


@pytest.mark.parametrize(
    ("within", "lazy", "most"),
    [
        # Both end with the tables of the catalog.
        ("", False, 21),
        ("", True, 26),
        ("tpuctl.emulator.", True, 14),
        ("tpuctl.resources.", True, 6),
        ("tpuctl.flows.", True, 7),
    ],
)
def test_import_chains_are_short(within: str, lazy: bool, most: int) -> None:
    chain = longest_chain("tpuctl", within, lazy=lazy)
    assert most // 2 < len(chain) <= most, " imports ".join(chain)
