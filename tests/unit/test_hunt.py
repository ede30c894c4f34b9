"""The hunt for a node under a trace of capacity."""

from __future__ import annotations

from tests.support.capacity_traces import SEED, SHIPPED, make_trace
from tpuctl.capacity_trace import ZoneTrace
from tpuctl.model.capacity.hunt import Hunt, Run, room_seconds, saved_seconds

#        0   1   2   3   4   5   6   7   8   9  10
# A          ────────────        ────────
# B                          ────────────────
A = ZoneTrace("a", "v2-8", (0.0, 1.0, 4.0, 6.0, 8.0), (0, 1, 0, 2, 0))
B = ZoneTrace("b", "v2-8", (5.0, 9.0), (1, 0))


def test_one_zone_waits_through_its_gaps() -> None:
    assert [*Hunt([A]).runs(0, 10)] == [Run(A, 1, 4, True), Run(A, 6, 8, True)]
    assert [*Hunt([A]).runs(2, 7)] == [Run(A, 2, 4, True), Run(A, 6, 7, False)]
    assert [*Hunt([A]).runs(9, 20)] == []
    assert [*Hunt([]).runs(0, 10)] == []


def test_first_zone_with_room_is_taken_and_kept() -> None:
    runs = [Run(A, 1, 4, True), Run(B, 5, 9, True)]
    assert [*Hunt([A, B]).runs(0, 10)] == runs
    assert room_seconds([A, B], 0, 10) == 7


def test_polls_and_setup_take_time() -> None:
    assert [*Hunt([B, A], poll=3).runs(0, 10)] == [Run(A, 3, 4, True), Run(B, 7, 9, True)]
    assert [*Hunt([A, B], setup=2).runs(0, 10)] == [Run(A, 3, 4, True), Run(B, 7, 9, True)]
    assert [*Hunt([A], setup=3).runs(0, 10)] == []  # its room is gone before


def test_preemption_loses_work_after_the_last_checkpoint() -> None:
    runs = [Run(A, 0, 25, True), Run(A, 30, 45, False)]
    assert saved_seconds(runs, 10) == 20 + 15


def test_shipped_trace_is_what_the_script_makes() -> None:
    assert SHIPPED.read_text("utf-8") == make_trace(SEED)
