"""Splitting text into pieces, shards, and examples of segments."""

from __future__ import annotations

import random
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.support.properties import given

sentence_lengths = st.lists(st.integers(1, 80), min_size=1, max_size=12)
corpora = st.lists(sentence_lengths, min_size=1, max_size=6)
pairs = st.sampled_from(["none", "nsp", "sop"])


def plan_of(job: SimpleNamespace, **changes: Any) -> Any:
    values = {"sequence_length": 64, "predictions": 10, "duplication": 1, "shards": 4, "seed": 1}
    return job.plan.RecordsPlan(**{**values, **changes})


def borders_of(corpus: list[list[int]]) -> list[list[int]]:
    ends = [0, *accumulate(length for document in corpus for length in document)]
    starts = [0, *accumulate(len(document) for document in corpus)]
    return [ends[at : at + len(document) + 1] for at, document in zip(starts, corpus, strict=False)]


@given(corpus=corpora, kind=pairs, length=st.integers(16, 70), seed=st.integers(0, 99))
def test_examples_cover_all_tokens_except_a_short_rest(
    job: SimpleNamespace, corpus: list[list[int]], kind: str, length: int, seed: int
) -> None:
    documents = borders_of(corpus)
    plan = plan_of(job, pairs=kind, sequence_length=length)
    found = list(job.segments.examples(documents, plan, random.Random(seed)))
    covered: set[int] = set()
    for example in found:
        ranges = [range(example.first, example.first_end)]
        if kind != "nsp" or example.label == 0:
            ranges.append(range(example.second, example.second_end))
        tokens = {token for part in ranges for token in part}
        assert any(d[0] <= min(tokens) and max(tokens) < d[-1] for d in documents)
        covered |= tokens
        used = example.first_end - example.first + example.second_end - example.second
        assert min(8, plan.room) <= used <= plan.room or example.label == 1
        assert used <= plan.room
    for document in documents:
        missing = [token for token in range(document[0], document[-1]) if token not in covered]
        assert missing == list(range(document[-1] - len(missing), document[-1]))
        assert len(missing) < 8


@given(corpus=corpora, kind=pairs, seed=st.integers(0, 99))
def test_labels_match_segments(
    job: SimpleNamespace, corpus: list[list[int]], kind: str, seed: int
) -> None:
    documents = borders_of(corpus)
    starts = {border for document in documents for border in document[:-1]}

    def document_of(token: int) -> int:
        return next(n for n, document in enumerate(documents) if token < document[-1])

    for example in job.segments.examples(documents, plan_of(job, pairs=kind), random.Random(seed)):
        if kind == "none":
            assert example.second == example.second_end and example.label == 0
            continue
        assert example.first < example.first_end and example.second < example.second_end
        if example.label == 0:
            assert example.second == example.first_end
        elif kind == "sop":
            assert example.second_end == example.first
        else:
            there = document_of(example.second)
            assert there != document_of(example.first)
            assert example.second_end <= documents[there][-1]
            # It begins at the start of a document, of a sentence, or of the rest of a long one.
            assert example.second in starts or any(
                end - start > plan_of(job).room // 2
                for start, end in zip(documents[there], documents[there][1:], strict=False)
            )


@pytest.mark.parametrize("kind", ["nsp", "sop"])
def test_half_of_the_pairs_are_not_consecutive(job: SimpleNamespace, kind: str) -> None:
    documents = borders_of([[9, 14, 7, 20, 11]] * 400)
    labels = [
        example.label
        for example in job.segments.examples(documents, plan_of(job, pairs=kind), random.Random(5))
    ]
    # Four standard deviations.
    assert sum(labels) / len(labels) == pytest.approx(0.5, abs=2 / len(labels) ** 0.5)


def test_single_document_has_no_random_pairs(job: SimpleNamespace) -> None:
    found = list(job.segments.examples(borders_of([[12] * 50]), plan_of(job), random.Random(1)))
    assert found and not any(example.label for example in found)


def test_some_sequences_are_short(job: SimpleNamespace) -> None:
    documents = borders_of([[5] * 40] * 100)

    def lengths(share: float) -> list[int]:
        plan = plan_of(job, pairs="none", short_sequences=share)
        generated = job.segments.examples(documents, plan, random.Random(3))
        return [example.first_end - example.first for example in generated]

    full = plan_of(job, pairs="none").room // 5 * 5
    assert sum(length < full for length in lengths(0.0)) <= 100  # a document's last
    assert sum(length < full for length in lengths(0.5)) > 300


def test_examples_are_deterministic_for_a_seed(job: SimpleNamespace) -> None:
    documents = borders_of([[9, 14, 7, 20, 11]] * 20)

    def generate(seed: str) -> list[Any]:
        return list(job.segments.examples(documents, plan_of(job), random.Random(seed)))

    assert generate("1/0/0") == generate("1/0/0") != generate("1/0/1")


words = st.text("가나 ", min_size=1, max_size=12).filter(str.strip)
texts = st.lists(
    st.lists(st.lists(words, min_size=1, max_size=4), max_size=5), min_size=1, max_size=4
)


def files_of(text: list[list[list[str]]], line_end: str) -> dict[str, bytes]:
    """Files of documents of sentences."""
    border = line_end * 2
    return {
        f"{n}.txt": border.join(line_end.join(document) for document in file).encode()
        for n, file in enumerate(text)
    }


def pieces_of(job: SimpleNamespace, files: dict[str, bytes], size: int) -> list[bytes]:
    def read(path: str, start: int, count: int) -> bytes:
        return files[path][start : start + count]

    text = job.pieces.Text(tuple((name, len(content)) for name, content in files.items()), size)
    return [text.piece(number, read) for number in range(text.pieces)]


def documents_of(job: SimpleNamespace, content: bytes) -> list[list[str]]:
    return list(job.text.documents(content.decode().split("\n")))


@given(text=texts, size=st.integers(160, 400), line_end=st.sampled_from(["\n", "\r\n"]))
def test_pieces_contain_each_document_once_in_order(
    job: SimpleNamespace, text: list[list[list[str]]], size: int, line_end: str
) -> None:
    files = files_of(text, line_end)  # no document has more than 160 bytes
    pieces = pieces_of(job, files, size)
    whole = [document for content in files.values() for document in documents_of(job, content)]
    assert [document for piece in pieces for document in documents_of(job, piece)] == whole


@given(text=texts, size=st.integers(50, 90))
def test_long_documents_are_split_between_sentences(
    job: SimpleNamespace, text: list[list[list[str]]], size: int
) -> None:
    files = files_of(text, "\n")  # no line has more than 37 bytes
    pieces = pieces_of(job, files, size)
    sentences = [
        sentence
        for content in files.values()
        for document in documents_of(job, content)
        for sentence in document
    ]
    ranges = [
        sentence
        for piece in pieces
        for document in documents_of(job, piece)
        for sentence in document
    ]
    assert ranges == sentences
    assert all(len(piece) <= 2 * size + 2 * len(files) for piece in pieces)


def test_text_without_line_ends_is_split(job: SimpleNamespace) -> None:
    content = b"x" * 1000
    pieces = pieces_of(job, {"a": content}, 100)
    assert b"".join(pieces) == content and max(map(len, pieces)) <= 200


@given(pieces=st.integers(1, 60), shards=st.integers(1, 60))
def test_shards_are_filled_in_order_without_gaps(
    job: SimpleNamespace, pieces: int, shards: int
) -> None:
    filled = [list(job.pieces.shards_of(piece, pieces, shards)) for piece in range(pieces)]
    flat = [shard for piece_shards in filled for shard in piece_shards]
    assert flat == sorted(flat) and set(flat) == set(range(shards))
    # A shard is complete before the next one begins.
    for before, after in pairwise(filled):
        assert before[-1] < after[0] or (before == after and len(before) == 1)
