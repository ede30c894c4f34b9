"""Lines of a log: prefixed with their worker, or filtered."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import strategies as st

from tests.support.properties import given
from tpuctl.jobs.log_lines import LineFilter, LinePrefixer

CUTS = st.lists(st.integers(0, 60), max_size=5)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    offsets = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(offsets)]


def add_prefixes(*chunks: bytes) -> bytes:
    prefixer = LinePrefixer([3])
    return b"".join(prefixer.feed(3, chunk) for chunk in chunks) + prefixer.finish(3)


def test_lines_get_prefix_once_complete() -> None:
    assert add_prefixes(b"one\ntwo\r\n10%\r20%\r", b"\nlast") == (
        b"[worker 3] one\n[worker 3] two\r\n[worker 3] 10%\r[worker 3] 20%\r\n[worker 3] last\n"
    )
    prefixer = LinePrefixer([0, 10])
    assert prefixer.feed(0, b"a\nb") == b"[worker  0] a\n"
    assert prefixer.is_holding(0) and not prefixer.is_holding(10)
    assert prefixer.feed(0, b"c\n") == b"[worker  0] bc\n"
    assert not prefixer.is_holding(0)
    assert prefixer.finish(0) == b""
    prefixer = LinePrefixer([0])
    assert prefixer.feed(0, b"50%\r") == b""
    assert prefixer.flush(0) == b"[worker 0] 50%"
    assert prefixer.feed(0, b"\nnext\n") == b"\r\n[worker 0] next\n"


def test_partial_lines_are_continued_or_ended_by_another_worker() -> None:
    prefixer = LinePrefixer([0, 1])
    assert prefixer.feed(0, b"loading") == b""
    assert prefixer.flush(0) == b"[worker 0] loading"
    assert prefixer.feed(0, b" ...") == b""
    assert prefixer.flush(0) == b" ..."
    assert prefixer.feed(0, b" done\nnext\n") == b" done\n[worker 0] next\n"
    prefixer = LinePrefixer([0, 1])
    prefixer.feed(0, b"loading")
    output = prefixer.flush(0) + prefixer.feed(1, b"one\n") + prefixer.feed(0, b" done\n")
    assert output == b"[worker 0] loading\n[worker 1] one\n[worker 0]  done\n"
    prefixer.feed(1, b"half")
    assert prefixer.flush(1) + prefixer.finish(1) == b"[worker 1] half\n"


def test_endless_line_has_bounded_memory() -> None:
    prefixer = LinePrefixer([0])
    pending = 0
    for _ in range(40):
        output = prefixer.feed(0, b"x" * (1 << 17))
        pending += (1 << 17) - len(output.removeprefix(b"[worker 0] "))
        assert pending <= 2 << 20
    assert prefixer.finish(0).endswith(b"\n")


@given(st.binary(max_size=60), CUTS)
def test_prefixes_are_independent_of_chunk_boundaries(data: bytes, cuts: list[int]) -> None:
    assert add_prefixes(*split(data, cuts)) == add_prefixes(data)


@given(st.text("ab\r\n", max_size=40))
def test_only_prefixes_are_added(text: str) -> None:
    data = text.encode()
    plain = add_prefixes(data).replace(b"[worker 3] ", b"")
    ends_open = bool(data) and not data.endswith((b"\n", b"\r"))
    assert plain == data + (b"\n" if ends_open else b"")


@given(
    st.lists(st.tuples(st.integers(0, 2), st.text("ab\r\n", max_size=8), st.booleans())),
)
def test_interleaved_workers_keep_all_text(writes: list[tuple[int, str, bool]]) -> None:
    """In any interleaving, each worker's text stays complete and in order."""
    prefixer = LinePrefixer(range(3))
    output = b""
    for worker, text, is_flushed in writes:
        output += prefixer.feed(worker, text.encode())
        if is_flushed:
            output += prefixer.flush(worker)
    for worker in range(3):
        output += prefixer.finish(worker)
    texts = dict.fromkeys(range(3), "")
    for line in re.split(r"[\r\n]", output.decode()):
        if line:
            name = re.match(r"\[worker (\d)\] ", line)
            assert name is not None, line
            texts[int(name[1])] += line[name.end() :]
    for worker in range(3):
        expected = "".join(text for source, text, _ in writes if source == worker)
        assert texts[worker] == re.sub(r"[\r\n]", "", expected)


def filter_lines(pattern: str, *chunks: bytes, max_bytes: int = 1 << 20) -> bytes:
    line_filter = LineFilter(re.compile(pattern), max_bytes=max_bytes)
    return b"".join(line_filter.feed(chunk) for chunk in chunks) + line_filter.finish()


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("loss", b"loss 3\r\nstep 2 \x1b[31mloss\x1b[0m 2\n"),
        ("^loss 3$", b"loss 3\r\n"),
        (r"2 loss 2$", b"step 2 \x1b[31mloss\x1b[0m 2\n"),
        ("^.%$", b"5%\r"),
        ("%", b"5%\r10%\r"),
        ("^손실$", "손실\n".encode()),
        ("end", b"the end"),
        ("nothing", b""),
    ],
)
def test_pattern_matches_whole_lines_without_colors(pattern: str, expected: bytes) -> None:
    log = (
        b"loss 3\r\nstep 2 \x1b[31mloss\x1b[0m 2\n5%\r10%\r\xff\n" + "손실\n".encode() + b"the end"
    )
    assert filter_lines(pattern, log) == expected


@given(st.text("ab\r\n", max_size=60), CUTS)
def test_matches_are_independent_of_chunk_boundaries(text: str, cuts: list[int]) -> None:
    data = text.encode()
    expected = b"".join(line for line in data.splitlines(keepends=True) if b"ab" in line)
    assert filter_lines("ab", *split(data, cuts)) == expected


@pytest.mark.parametrize("begin", [b"yes", b"no"])
def test_endless_line_is_matched_by_its_beginning(begin: bytes) -> None:
    chunks = [begin, *[b"." * 50] * 20, b"yes\n", b"yes\n"]
    whole = b"".join(chunks)
    expected = whole if begin == b"yes" else b"yes\n"
    assert filter_lines("yes", *chunks, max_bytes=100) == expected
