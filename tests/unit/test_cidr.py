"""Address ranges chosen for TPU nodes."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest
from hypothesis import strategies as st

from tests.support.properties import given
from tpuctl.errors import Conflict
from tpuctl.resources.network.cidr import POOL, free_range

AUTO = IPv4Network("10.128.0.0/9")  # the range of auto mode subnetworks


SMALL = IPv4Network("10.240.8.0/24")  # small enough to try each of its blocks


@st.composite
def networks(draw: st.DrawFn) -> IPv4Network:
    """Ranges of all sizes in and around the small pool."""
    first, last = int(SMALL.network_address), int(SMALL.broadcast_address)
    near, anywhere = st.integers(first - 64, last + 64), st.integers(0, 2**32 - 1)
    address = draw(st.one_of(near, anywhere))
    return IPv4Network((address, draw(st.integers(8, 32))), strict=False)


@given(st.lists(networks(), max_size=12), st.integers(25, 29))
def test_first_free_block_is_chosen(used: list[IPv4Network], prefix: int) -> None:
    free = [
        block
        for block in SMALL.subnets(new_prefix=prefix)
        if not any(block.overlaps(other) for other in used)
    ]
    texts = [str(network) for network in used]
    if free:
        assert free_range(texts, prefix, SMALL) == str(free[0])
    else:
        with pytest.raises(Conflict):
            free_range(texts, prefix, SMALL)


@given(st.integers(1, 40), st.integers(23, 29))
def test_consecutive_ranges_never_overlap(count: int, prefix: int) -> None:
    ranges: list[str] = []
    for _ in range(count):
        ranges.append(free_range(ranges, prefix))
    blocks = [IPv4Network(text) for text in ranges]
    assert all(not a.overlaps(b) for i, a in enumerate(blocks) for b in blocks[:i])


def test_pool_leaves_room_for_new_regions() -> None:
    """Google assigns ranges from the lower end of auto mode's range; the pool is at the upper."""
    assert POOL.subnet_of(AUTO)
    assert free_range(["10.128.0.0/10", "10.192.0.0/11", "10.224.0.0/12"], 29) == "10.240.0.0/29"
    assert free_range(["", "fd00::/64", "10.240.0.0/29", "nonsense"], 29) == "10.240.0.8/29"
    with pytest.raises(Conflict) as caught:
        free_range(["10.0.0.0/8"], 29)
    assert "node_range" in caught.value.diagnostics[0].hint
