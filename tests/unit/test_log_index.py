"""Offsets in a log, compared with those from reading all of it."""

from __future__ import annotations

from io import BytesIO
from itertools import accumulate

import pytest
from hypothesis import example
from hypothesis import strategies as st

from tests.support.properties import given
from tpuctl.jobs.shipped.logs import logindex
from tpuctl.jobs.shipped.logs.logindex import LastLines, LogTimestamps, line_start

LOG = st.text("ab\r\n", max_size=80).map(str.encode)


@pytest.fixture(autouse=True, scope="module")
def blocks() -> object:
    """Blocks of a few bytes, so that small logs have many boundaries."""
    patch = pytest.MonkeyPatch()
    patch.setattr(logindex, "BLOCK_BYTES", 7)
    yield
    patch.undo()


def line_offsets(log: bytes) -> list[int]:
    """The offsets of all lines, split as in Python."""
    line_begins, offset = [], 0
    for line in log.splitlines(keepends=True):
        line_begins.append(offset)
        offset += len(line)
    return line_begins


def counted_offsets(log: bytes) -> list[int]:
    """The offsets of the lines that `--tail` counts."""
    return [0, *accumulate(map(len, BytesIO(log)))][:-1]


def search_log(log: bytes, lines: int, **bounds: int) -> LastLines:
    search = LastLines(len(log), lines, **bounds)
    while not search.is_over:
        search.feed(log[search.begin : search.begin + search.length])
    return search


@given(LOG, st.integers(0, 12))
def test_last_lines(log: bytes, lines: int) -> None:
    search = search_log(log, lines)
    expected = [len(log), *reversed(counted_offsets(log))][: lines + 1][-1]
    assert (search.begins_at, search.lines) == (expected, 0)


def test_line_begins_are_found() -> None:
    """As in `tail`: all updates of the bar are one line."""
    log = b"first\nsecond\n10%\r20%\r30%\r\nlast\r\n"
    assert log[search_log(log, 2).begins_at :] == b"10%\r20%\r30%\r\nlast\r\n"
    assert line_start(b"xxxxx", 100, 104) == 104
    assert line_start(b"xx\nxx", 100, 104) == 103
    assert LogTimestamps(b"1.0 10\nrubbish\n2.0 20\n3.0 3").length_at(9.0) == 20


@given(LOG, st.integers(0, 12), st.data())
def test_search_continues_in_other_copy(log: bytes, lines: int, data: st.DataObject) -> None:
    """A search that had to stop continues in another copy, with the same result."""
    readable = data.draw(st.integers(0, len(log)))
    first = search_log(log, lines, readable=readable)
    assert first.begins_at >= readable
    second = search_log(log[: first.begins_at], first.lines)
    assert second.begins_at == search_log(log, lines).begins_at


@given(LOG, st.integers(0, 12), st.data())
def test_search_stops_at_earliest_offset(log: bytes, lines: int, data: st.DataObject) -> None:
    earliest = data.draw(st.sampled_from([*line_offsets(log), len(log)]))
    search = search_log(log, lines, earliest=earliest)
    assert (search.begins_at, search.lines) == (max(earliest, search_log(log, lines).begins_at), 0)


@given(LOG, st.data())
def test_line_begin_of_offset(log: bytes, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, len(log)))
    boundaries = [0, *line_offsets(log), *ends(log)]
    expected = max(position for position in boundaries if position <= offset)
    assert line_start(log[: offset + 1], 0, offset) == expected


def ends(log: bytes) -> list[int]:
    return [len(log)] if log.endswith((b"\r", b"\n")) else []


SECONDS = st.floats(0, 1e6, allow_nan=False)


@given(st.lists(st.tuples(SECONDS, st.integers(0, 500)), max_size=60), SECONDS)
@example([(1.0, 0), (2.0, 0), (0.0, 1)], 2.0)  # set back after a reading that was not recorded
def test_text_before_length_is_older_than_timestamp(
    steps: list[tuple[float, int]], timestamp: float
) -> None:
    """Whatever the clock does, and though not every step is recorded."""
    timestamps = LogTimestamps()
    text, length, limit = b"", 0, None
    for seconds, more in steps:
        if seconds >= timestamp and limit is None:
            limit = length  # what follows was written since
        length += more
        line = timestamps.record(seconds, length)
        text += line or b""
    offset = LogTimestamps(text).length_at(timestamp)
    assert offset == timestamps.length_at(timestamp)
    assert offset <= (length if limit is None else limit)


def test_steady_log_is_indexed_to_the_second() -> None:
    timestamps = LogTimestamps()
    for second in range(1000):
        timestamps.record(float(second), second * 10)
        timestamps.record(second + 0.5, second * 10 + 5)
    for second in (1, 500, 999):
        assert timestamps.length_at(second + 0.9) == second * 10
    assert timestamps.length_at(-1.0) == 0


def test_week_of_timestamps_has_bounded_size_and_error() -> None:
    timestamps, text = LogTimestamps(), b""
    last, step = 7 * 24 * 3600, 8
    for second in range(0, last, step):
        line = timestamps.record(float(second), second)
        text = timestamps.thin() if timestamps.is_long else text + (line or b"")
        assert len(text) < 64_000
    kept = LogTimestamps(text)
    for ago in (60, 600, 3600, 24 * 3600, 6 * 24 * 3600):
        assert (last - ago) - (0.03 * ago + 2 * step) <= kept.length_at(last - ago) <= last - ago


@given(st.text("0123456789-.enaif \n", max_size=60), st.floats(-1e10, 1e10))
@example("1 -9\n", 2.0)
@example("nan 5\ninf 7\n1 -9\n", 2.0)
def test_index_of_hostile_machine_gives_offsets_only(text: str, timestamp: float) -> None:
    assert LogTimestamps(text.encode()).length_at(timestamp) >= 0
