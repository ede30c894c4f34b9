"""Chunking: nothing is lost, sizes are limited, and a change affects only nearby chunks."""

from __future__ import annotations

import hashlib
import io
import random
from typing import IO

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tpuctl.jobs.chunking import MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, split_chunks


def chunks(data: bytes) -> list[bytes]:
    return list(split_chunks(io.BytesIO(data)))


def prose(seed: int, size: int, separator: bytes) -> bytes:
    """Lines, or words, of random letters."""
    noise = random.Random(seed)
    parts: list[bytes] = []
    while size > 0:
        parts.append(noise.randbytes(noise.randrange(1, 40)).hex().encode() + separator)
        size -= len(parts[-1])
    return b"".join(parts)


KINDS = {
    "lines": lambda seed: prose(seed, 2_000_000, b"\n"),
    "one line of words": lambda seed: prose(seed, 2_000_000, b" "),
    "one line of numbers": lambda seed: prose(seed, 2_000_000, b","),
    "noise": lambda seed: random.Random(seed).randbytes(2_000_000),
}


SIZES = st.sampled_from([1, MIN_CHUNK_BYTES - 1, MIN_CHUNK_BYTES, 70_000, MAX_CHUNK_BYTES, 300_000])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=200),
            st.builds(lambda byte, count: bytes([byte]) * count, st.integers(0, 255), SIZES),
            st.builds(prose, st.integers(0, 9), SIZES, st.sampled_from([b"\n", b" ", b"x"])),
        ),
        max_size=6,
    )
)
def test_chunks_join_to_the_data_and_respect_size_limits(parts: list[bytes]) -> None:
    data = b"".join(parts)
    pieces = list(chunks(data))
    assert b"".join(pieces) == data
    assert all(MIN_CHUNK_BYTES <= len(chunk) <= MAX_CHUNK_BYTES for chunk in pieces[:-1])
    assert all(0 < len(chunk) <= MAX_CHUNK_BYTES for chunk in pieces[-1:])


def test_small_files_are_one_chunk() -> None:
    assert chunks(b"") == []
    assert chunks(b"\n" * MIN_CHUNK_BYTES) == [b"\n" * MIN_CHUNK_BYTES]


class Slow(io.BytesIO):
    """A file that returns fewer bytes per read than requested."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(size or 0, MAX_CHUNK_BYTES + 1))


def test_chunks_are_independent_of_read_sizes() -> None:
    data = KINDS["lines"](1)
    slow: IO[bytes] = Slow(data)
    assert list(split_chunks(slow)) == chunks(data)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_insertion_changes_only_nearby_chunks(kind: str, seed: int) -> None:
    before = KINDS[kind](seed)
    where = random.Random(seed).randrange(len(before))
    after = before[:where] + b"inserted" + before[where:]
    hashes = {hashlib.sha256(chunk).digest() for chunk in chunks(before)}
    new = [chunk for chunk in chunks(after) if hashlib.sha256(chunk).digest() not in hashes]
    assert new, "something was changed"
    assert sum(map(len, new)) <= 4 * MAX_CHUNK_BYTES, "of two megabytes"
    if kind == "lines":
        assert len(new) <= 2


def test_average_chunk_size_of_text() -> None:
    sizes = [len(chunk) for chunk in chunks(KINDS["lines"](7))]
    assert 40_000 <= sum(sizes) / len(sizes) <= 100_000
