"""The longest chains of imports do not grow."""

from __future__ import annotations

import pytest

from tests.support.import_chains import longest_chain


@pytest.mark.parametrize(
    ("within", "lazy", "most"),
    [
        # Both end with the tables of the catalog.
        ("", False, 23),
        ("", True, 26),
        # A resize request grows a managed group of instances, which capacity is reserved for; a
        # fault may answer it, with the message of a project whose API is disabled.
        ("tpuctl.emulator.", True, 20),
        # A request has the specification of its nodes, which have disks.
        ("tpuctl.resources.", True, 6),
        ("tpuctl.flows.", True, 7),
    ],
)
def test_import_chains_are_short(within: str, lazy: bool, most: int) -> None:
    chain = longest_chain("tpuctl", within, lazy=lazy)
    assert most // 2 < len(chain) <= most, " imports ".join(chain)
