"""The last lines of a log."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tpuctl.model.logs.log_tail import MAX_LINE_BYTES, LogTail


def tail_of(*chunks: bytes, most: int = 500) -> LogTail:
    tail = LogTail(most)
    for chunk in chunks:
        tail.feed(chunk)
    return tail


@given(st.lists(st.text("ab\r\n").map(str.encode)))
def test_chunk_boundaries_do_not_matter(chunks: list[bytes]) -> None:
    tail = tail_of(*chunks)
    *lines, rest = re.split(rb"\r\n|\n|\r(?=.)", b"".join(chunks), flags=re.DOTALL)
    assert [line.encode() for line in tail.lines] == lines
    assert tail.line_count == len(lines)
    assert tail.incomplete_line.encode() == rest.removesuffix(b"\r")


def test_last_lines_are_kept_and_all_are_counted() -> None:
    chunks = (
        b"".join(b"%d\n" % number for number in range(start, start + 10)) for start in (0, 10)
    )
    tail = tail_of(*chunks, b"the rest", most=3)
    assert (tail.line_count, tail.lines) == (20, ["17", "18", "19"])
    assert tail.text(3) == "18\n19\nthe rest"
    tail = tail_of(b"\x1b[31mred\x1b[0m \xff\x07bell\t.\n")
    assert tail.lines == ["red \ufffdbell\t."]


def test_long_lines_are_cut_in_constant_memory() -> None:
    tail = LogTail(5)
    for _ in range(100):
        tail.feed(b"x" * MAX_LINE_BYTES)
        assert len(tail._rest) <= MAX_LINE_BYTES + 1
    tail.feed(b"y\r")
    tail.feed(b"next\n")
    assert [len(line) for line in tail.lines] == [MAX_LINE_BYTES, len("next")]
