"""Lines out of a log's bytes: with the names of their workers, or only those that match."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuctl.jobs.log_lines import LineFilter, LinePrefixer

CUTS = st.lists(st.integers(0, 60), max_size=5)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places)]


def with_names(*chunks: bytes) -> bytes:
    names = LinePrefixer([3])
    return b"".join(names.feed(3, chunk) for chunk in chunks) + names.finish(3)


def test_lines_get_prefix_and_keep_line_endings() -> None:
    assert with_names(b"one\ntwo\r\n10%\r20%\r", b"\nlast") == (
        b"[worker 3] one\n[worker 3] two\r\n[worker 3] 10%\r[worker 3] 20%\r\n[worker 3] last\n"
    )


def test_complete_lines_are_not_buffered() -> None:
    names = LinePrefixer([0, 10])
    assert names.feed(0, b"a\nb") == b"[worker  0] a\n"
    assert names.is_holding(0) and not names.is_holding(10)
    assert names.feed(0, b"c\n") == b"[worker  0] bc\n"
    assert not names.is_holding(0)
    assert names.finish(0) == b""


def test_flushed_partial_line_is_continued() -> None:
    names = LinePrefixer([0, 1])
    assert names.feed(0, b"loading") == b""
    assert names.flush(0) == b"[worker 0] loading"
    assert names.feed(0, b" ...") == b""
    assert names.flush(0) == b" ..."
    assert names.feed(0, b" done\nnext\n") == b" done\n[worker 0] next\n"


def test_other_worker_starts_new_line() -> None:
    names = LinePrefixer([0, 1])
    names.feed(0, b"loading")
    output = names.flush(0) + names.feed(1, b"one\n") + names.feed(0, b" done\n")
    assert output == b"[worker 0] loading\n[worker 1] one\n[worker 0]  done\n"
    names.feed(1, b"half")
    assert names.flush(1) + names.finish(1) == b"[worker 1] half\n"


def test_carriage_return_is_held_until_next_byte() -> None:
    names = LinePrefixer([0])
    assert names.feed(0, b"50%\r") == b""
    assert names.flush(0) == b"[worker 0] 50%"
    assert names.feed(0, b"\nnext\n") == b"\r\n[worker 0] next\n"


def test_endless_line_has_bounded_memory() -> None:
    names = LinePrefixer([0])
    pending = 0
    for _ in range(40):
        output = names.feed(0, b"x" * (1 << 17))
        pending += (1 << 17) - len(output.removeprefix(b"[worker 0] "))
        assert pending <= 2 << 20
    assert names.finish(0).endswith(b"\n")


@given(st.binary(max_size=60), CUTS)
def test_prefixes_are_independent_of_chunk_boundaries(data: bytes, cuts: list[int]) -> None:
    assert with_names(*pieces(data, cuts)) == with_names(data)


@given(st.text("ab\r\n", max_size=40))
def test_only_prefixes_are_added(text: str) -> None:
    data = text.encode()
    plain = with_names(data).replace(b"[worker 3] ", b"")
    ends_open = bool(data) and not data.endswith((b"\n", b"\r"))
    assert plain == data + (b"\n" if ends_open else b"")


@given(
    st.lists(st.tuples(st.integers(0, 2), st.text("ab\r\n", max_size=8), st.booleans())),
)
def test_interleaved_workers_keep_all_text(writes: list[tuple[int, str, bool]]) -> None:
    """In any interleaving, each worker's text stays its own, in order."""
    names = LinePrefixer(range(3))
    output = b""
    for worker, text, is_flushed in writes:
        output += names.feed(worker, text.encode())
        if is_flushed:
            output += names.flush(worker)
    for worker in range(3):
        output += names.finish(worker)
    texts = dict.fromkeys(range(3), "")
    for line in re.split(r"[\r\n]", output.decode()):
        if line:
            name = re.match(r"\[worker (\d)\] ", line)
            assert name is not None, line
            texts[int(name[1])] += line[name.end() :]
    for worker in range(3):
        expected = "".join(text for source, text, _ in writes if source == worker)
        assert texts[worker] == re.sub(r"[\r\n]", "", expected)


def matching(pattern: str, *chunks: bytes, most: int = 1 << 20) -> bytes:
    lines = LineFilter(re.compile(pattern), max_bytes=most)
    return b"".join(lines.feed(chunk) for chunk in chunks) + lines.finish()


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
    assert matching(pattern, log) == expected


@given(st.text("ab\r\n", max_size=60), CUTS)
def test_matches_are_independent_of_chunk_boundaries(text: str, cuts: list[int]) -> None:
    data = text.encode()
    expected = b"".join(line for line in data.splitlines(keepends=True) if b"ab" in line)
    assert matching("ab", *pieces(data, cuts)) == expected


@pytest.mark.parametrize("begin", [b"yes", b"no"])
def test_endless_line_is_matched_by_its_beginning(begin: bytes) -> None:
    chunks = [begin, *[b"." * 50] * 20, b"yes\n", b"yes\n"]
    whole = b"".join(chunks)
    expected = whole if begin == b"yes" else b"yes\n"
    assert matching("yes", *chunks, most=100) == expected
