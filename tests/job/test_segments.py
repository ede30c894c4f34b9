"""Packing sentences into examples of one or two segments."""

from __future__ import annotations

import random
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.support.properties import given

sentence_lengths = st.lists(st.integers(1, 80), min_size=1, max_size=12)
corpora = st.lists(sentence_lengths, min_size=1, max_size=6)
pairs = st.sampled_from(["none", "nsp", "sop"])


def plan_of(wiki: SimpleNamespace, **changes: Any) -> Any:
    return wiki.records.Plan(**{"sequence_length": 64, **changes})


def borders_of(corpus: list[list[int]]) -> list[list[int]]:
    ends = [0, *accumulate(length for document in corpus for length in document)]
    starts = [0, *accumulate(len(document) for document in corpus)]
    return [ends[at : at + len(document) + 1] for at, document in zip(starts, corpus, strict=False)]


@given(corpus=corpora, kind=pairs, length=st.integers(16, 70), seed=st.integers(0, 99))
def test_examples_cover_all_tokens_except_a_short_rest(
    wiki: SimpleNamespace, corpus: list[list[int]], kind: str, length: int, seed: int
) -> None:
    documents = borders_of(corpus)
    plan = plan_of(wiki, pairs=kind, sequence_length=length)
    found = list(wiki.records.examples(documents, plan, random.Random(seed)))
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
    wiki: SimpleNamespace, corpus: list[list[int]], kind: str, seed: int
) -> None:
    documents = borders_of(corpus)
    starts = {border for document in documents for border in document[:-1]}

    def document_of(token: int) -> int:
        return next(n for n, document in enumerate(documents) if token < document[-1])

    for example in wiki.records.examples(documents, plan_of(wiki, pairs=kind), random.Random(seed)):
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
                end - start > plan_of(wiki).room // 2
                for start, end in zip(documents[there], documents[there][1:], strict=False)
            )


@pytest.mark.parametrize("kind", ["nsp", "sop"])
def test_half_of_the_pairs_are_not_consecutive(wiki: SimpleNamespace, kind: str) -> None:
    documents = borders_of([[9, 14, 7, 20, 11]] * 400)
    labels = [
        example.label
        for example in wiki.records.examples(documents, plan_of(wiki, pairs=kind), random.Random(5))
    ]
    # Four standard deviations.
    assert sum(labels) / len(labels) == pytest.approx(0.5, abs=2 / len(labels) ** 0.5)


def test_single_document_has_no_random_pairs(wiki: SimpleNamespace) -> None:
    found = list(wiki.records.examples(borders_of([[12] * 50]), plan_of(wiki), random.Random(1)))
    assert found and not any(example.label for example in found)


def test_some_sequences_are_short(wiki: SimpleNamespace) -> None:
    documents = borders_of([[5] * 40] * 100)

    def lengths(share: float) -> list[int]:
        plan = plan_of(wiki, pairs="none", short_sequences=share)
        generated = wiki.records.examples(documents, plan, random.Random(3))
        return [example.first_end - example.first for example in generated]

    full = plan_of(wiki, pairs="none").room // 5 * 5
    assert sum(length < full for length in lengths(0.0)) <= 100  # a document's last
    assert sum(length < full for length in lengths(0.5)) > 250


def test_examples_are_deterministic_for_a_seed(wiki: SimpleNamespace) -> None:
    documents = borders_of([[9, 14, 7, 20, 11]] * 20)

    def generate(seed: str) -> list[Any]:
        return list(wiki.records.examples(documents, plan_of(wiki), random.Random(seed)))

    assert generate("1/0/0") == generate("1/0/0") != generate("1/0/1")
