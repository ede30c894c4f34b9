"""Builds the records of a piece of text: bytes in, bytes out, no side effects.

The same function runs in this machine's processes (`corpus.records`) and on Apache Beam's workers
(`corpus.beam`).
"""

from __future__ import annotations

import hashlib
import math
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from corpus.assembly import assemble
from corpus.encoding import Encoder
from corpus.layout import Layout, bits
from corpus.masking import budgets, mask
from corpus.pieces import shards_of
from corpus.plan import RecordsPlan
from corpus.segments import Example, examples
from corpus.text import compose
from corpus.tfrecord import compress, frame

__all__ = ["Part", "PieceRecords", "make_builder", "parse"]

MAX_LINE_CHARACTERS = 100_000  # a longer line is not a sentence


@dataclass(frozen=True)
class Part:
    """A piece's contribution to a shard: gzip members, and the number of sequences in them."""

    shard: int
    training: bytes
    training_sequences: int
    held_out: bytes
    held_out_sequences: int


@dataclass(frozen=True)
class PieceRecords:
    """The records of a piece of text."""

    parts: list[Part]
    counts: dict[str, int]
    skipped: dict[str, int]


def make_builder(
    plan: RecordsPlan, tokenizer_json: str, pieces: int
) -> Callable[[tuple[int, bytes]], PieceRecords]:
    """Return a function that builds the records of a piece, given its number and bytes."""
    # Each process has one core: the tokenizer's threads would only compete for it.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return RecordBuilder(plan, Encoder(tokenizer_json), pieces)


class RecordBuilder:
    """Builds the records of pieces, with a plan, a tokenizer and the total number of pieces."""

    def __init__(self, plan: RecordsPlan, encoder: Encoder, pieces: int) -> None:
        self.plan, self.encoder, self.pieces = plan, encoder, pieces

    def __call__(self, piece: tuple[int, bytes]) -> PieceRecords:
        """Return a piece's records; deterministic for a plan and a vocabulary."""
        plan, (number, text) = self.plan, piece
        sentences, skipped = parse(text)
        tokens, documents = self.encode(sentences, skipped)
        chosen = set(held_out(len(documents), plan.held_out, number, plan.seed))
        training_documents = [document for n, document in enumerate(documents) if n not in chosen]
        held_out_documents = [document for n, document in enumerate(documents) if n in chosen]
        counts = Counter(
            documents=len(training_documents),
            held_out_documents=len(held_out_documents),
            sentences=sum(len(document) - 1 for document in documents),
        )
        copies = [
            list(examples(training_documents, plan, random.Random(f"{plan.seed}/{number}/{copy}")))
            for copy in range(plan.duplication)
        ]
        skipped["unused_sentences"] = unused_sentences(training_documents, copies)
        training = self.records(tokens, copies, plan.masking, f"{number}", counts)
        # Statically masked, so that every evaluation measures the same.
        fixed = list(
            examples(held_out_documents, plan, random.Random(f"{plan.seed}/{number}/held out"))
        )
        evaluation = self.records(tokens, [fixed], "static", f"{number}/held out", Counter())
        counts["held_out_sequences"] = len(evaluation)

        shards = shards_of(number, self.pieces, plan.shards)
        parts = []
        for n, shard in enumerate(shards):
            training_rows, held_out_rows = training[n :: len(shards)], evaluation[n :: len(shards)]
            parts.append(
                Part(
                    shard,
                    compressed_records(training_rows),
                    len(training_rows),
                    compressed_records(held_out_rows),
                    len(held_out_rows),
                )
            )
        return PieceRecords(parts, dict(counts), dict(skipped))

    def encode(
        self, documents: list[list[list[str]]], skipped: Counter[str]
    ) -> tuple[Any, list[list[int]]]:
        """Return all tokens, int32 [T], and each document as the borders of its sentences."""
        sentences = [sentence for document in documents for sentence in document]
        tokens, lengths = self.encoder.encode(sentences)
        skipped["sentences_without_tokens"] = int((lengths == 0).sum())
        ends = numpy.cumsum([0, *lengths]).tolist()
        borders_of_documents, first = [], 0
        for document in documents:
            borders = ends[first : first + len(document) + 1]
            first += len(document)
            # Equal borders delimit an empty sentence.
            if borders[0] < borders[-1]:
                borders_of_documents.append(sorted(set(borders)))
        return tokens, borders_of_documents

    def records(
        self,
        tokens: Any,
        copies: Sequence[Sequence[Example]],
        masking: str,
        seed_text: str,
        counts: Counter[str],
    ) -> Any:
        """Return the rows of all copies [N, numbers] in random order; update the counts."""
        plan, encoder = self.plan, self.encoder
        layout = Layout(plan.sequence_length, plan.predictions, masking, encoder.vocabulary_size)
        all_rows = []
        for copy, found_examples in enumerate(copies):
            assembled = assemble(
                tokens, found_examples, plan, encoder.special, encoder.is_continuation
            )
            fields = {"total": assembled.total, "first": assembled.first, "label": assembled.label}
            if masking == "static":
                masked = mask(
                    assembled.tokens,
                    assembled.candidates,
                    assembled.starts,
                    plan.predictions,
                    encoder.special,
                    encoder.vocabulary_size,
                    generator(f"{plan.seed}/{seed_text}/{copy}"),
                )
                fields |= {"input_ids": masked.tokens, "count": masked.counts}
                fields |= {"positions": masked.positions, "ids": masked.ids}
                predictions = masked.counts
            else:
                fields |= {"input_ids": assembled.tokens, "words": bits(assembled.starts)}
                predictions = budgets(assembled.candidates, plan.predictions)
            all_rows.append(layout.rows(**fields))
            counts.update(
                sequences=len(found_examples),
                tokens=int(assembled.total.sum()),
                predictions=int(predictions.sum()),
                negative_pairs=int(assembled.label.sum()),
            )
        rows = numpy.concatenate(all_rows)
        return rows[generator(f"{plan.seed}/{seed_text}/order").permutation(len(rows))]


def parse(text: bytes) -> tuple[list[list[list[str]]], Counter[str]]:
    """Return documents of sentences of words, and the count of skipped lines by reason.

    Like `corpus.text.documents`, for bytes that may be partly broken.
    """
    skipped: Counter[str] = Counter()
    documents: list[list[list[str]]] = [[]]
    for line in lines_of(text, skipped):
        if len(line) > MAX_LINE_CHARACTERS:
            skipped["lines_too_long"] += 1
        elif words := line.split():
            documents[-1].append(words)
        elif documents[-1]:
            documents.append([])
    return [document for document in documents if document], skipped


def lines_of(text: bytes, skipped: Counter[str]) -> list[str]:
    try:
        return compose(text.decode("utf-8")).split("\n")
    except UnicodeDecodeError:
        lines = []
        for line in text.split(b"\n"):
            try:
                lines.append(compose(line.decode("utf-8")))
            except UnicodeDecodeError:
                skipped["lines_not_utf8"] += 1
        return lines


def held_out(documents: int, share: float, piece: int, seed: int) -> list[int]:
    """Return which of a piece's documents are held out: the given share on average.

    Always in twos, so that a pair can take its second segment from the other document. The first
    piece of a text always holds some out, so that a small text has held-out documents, too.
    """
    chooser = random.Random(f"{seed}/{piece}/held out documents")
    twos = math.floor(share * documents / 2 + chooser.random())
    if piece == 0 and share > 0:
        twos = max(twos, 1)
    return chooser.sample(range(documents), 2 * min(twos, documents // 4))


def unused_sentences(
    documents: Sequence[Sequence[int]], copies: Sequence[Sequence[Example]]
) -> int:
    """Return the number of sentences that are in no example of any copy."""
    if not documents:
        return 0
    used = numpy.zeros(documents[-1][-1] + 1, numpy.int64)
    for found_examples in copies:
        table = numpy.array(found_examples, numpy.int64).reshape(-1, 5)
        numpy.add.at(used, table[:, [0, 2]], 1)
        numpy.add.at(used, table[:, [1, 3]], -1)
    before = numpy.concatenate(([0], numpy.cumsum(numpy.cumsum(used) > 0)))
    return sum(int((numpy.diff(before[list(document)]) == 0).sum()) for document in documents)


def compressed_records(rows: Any) -> bytes:
    return compress(frame(rows)) if len(rows) else b""


def generator(seed_text: str) -> Any:
    """Return a NumPy generator with a seed from a text, the same in every process."""
    seed = hashlib.sha256(seed_text.encode("utf-8")).digest()
    return numpy.random.Generator(numpy.random.PCG64(int.from_bytes(seed, "little")))
