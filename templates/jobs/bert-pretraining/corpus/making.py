"""A piece of text becomes its share of the records: bytes in, bytes out, nothing else.

Everything of the records stage that is computed comes together here. The same function runs in
this machine's processes (`corpus.records`) and on Apache Beam's workers (`corpus.beam`).
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
from corpus.text import composed
from corpus.tfrecord import compress, frame

__all__ = ["Made", "Part", "make_maker", "parse"]

LONGEST_LINE = 100_000  # characters; a longer line is no sentence


@dataclass(frozen=True)
class Part:
    """What a piece adds to a shard: gzip members, and how many sequences are in them."""

    shard: int
    training: bytes
    training_sequences: int
    held_out: bytes
    held_out_sequences: int


@dataclass(frozen=True)
class Made:
    """What a piece of text became."""

    parts: list[Part]
    counts: dict[str, int]
    skipped: dict[str, int]


def make_maker(
    plan: RecordsPlan, tokenizer_json: str, pieces: int
) -> Callable[[tuple[int, bytes]], Made]:
    """Return the function from a piece's number and bytes to what they become."""
    # Each process has a core; threads of the tokenizer's own would only take turns on it.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return Maker(plan, Encoder(tokenizer_json), pieces)


class Maker:
    """The plan, the tokenizer and the number of all pieces, the same for every piece."""

    def __init__(self, plan: RecordsPlan, encoder: Encoder, pieces: int) -> None:
        self.plan, self.encoder, self.pieces = plan, encoder, pieces

    def __call__(self, piece: tuple[int, bytes]) -> Made:
        """Return what a piece becomes; the same for the same plan and vocabulary."""
        plan, (number, text) = self.plan, piece
        sentences, skipped = parse(text)
        tokens, documents = self.encode(sentences, skipped)
        chosen = set(held_out(len(documents), plan.held_out, number, plan.seed))
        kept = [document for n, document in enumerate(documents) if n not in chosen]
        apart = [document for n, document in enumerate(documents) if n in chosen]
        counts = Counter(
            documents=len(kept),
            held_out_documents=len(apart),
            sentences=sum(len(document) - 1 for document in documents),
        )
        copies = [
            list(examples(kept, plan, random.Random(f"{plan.seed}/{number}/{copy}")))
            for copy in range(plan.duplication)
        ]
        skipped["sentences_left_over"] = left_over(kept, copies)
        training = self.records(tokens, copies, plan.masking, f"{number}", counts)
        # Masked once and for all, so that every evaluation measures the same.
        fixed = list(examples(apart, plan, random.Random(f"{plan.seed}/{number}/held out")))
        evaluation = self.records(tokens, [fixed], "static", f"{number}/held out", Counter())
        counts["held_out_sequences"] = len(evaluation)

        shards = shards_of(number, self.pieces, plan.shards)
        parts = []
        for n, shard in enumerate(shards):
            mine, apart_too = training[n :: len(shards)], evaluation[n :: len(shards)]
            parts.append(Part(shard, written(mine), len(mine), written(apart_too), len(apart_too)))
        return Made(parts, dict(counts), dict(skipped))

    def encode(
        self, documents: list[list[list[str]]], skipped: Counter[str]
    ) -> tuple[Any, list[list[int]]]:
        """Return all tokens, int32 [T], and each document as its sentences' borders in them."""
        sentences = [sentence for document in documents for sentence in document]
        tokens, lengths = self.encoder.encode(sentences)
        skipped["sentences_without_tokens"] = int((lengths == 0).sum())
        ends = numpy.cumsum([0, *lengths]).tolist()
        found, first = [], 0
        for document in documents:
            borders = ends[first : first + len(document) + 1]
            first += len(document)
            # Equal borders have nothing in between.
            if borders[0] < borders[-1]:
                found.append(sorted(set(borders)))
        return tokens, found

    def records(
        self,
        tokens: Any,
        copies: Sequence[Sequence[Example]],
        masking: str,
        place: str,
        counts: Counter[str],
    ) -> Any:
        """Return the rows of all copies [N, numbers] in random order; count what is in them."""
        plan, encoder = self.plan, self.encoder
        layout = Layout(plan.sequence_length, plan.predictions, masking, encoder.vocabulary_size)
        all_rows = []
        for copy, found in enumerate(copies):
            made = assemble(tokens, found, plan, encoder.special, encoder.goes_on)
            fields = {"total": made.total, "first": made.first, "label": made.label}
            if masking == "static":
                masked = mask(
                    made.tokens,
                    made.candidates,
                    made.starts,
                    plan.predictions,
                    encoder.special,
                    encoder.vocabulary_size,
                    generator(f"{plan.seed}/{place}/{copy}"),
                )
                fields |= {"input_ids": masked.tokens, "count": masked.counts}
                fields |= {"positions": masked.positions, "ids": masked.ids}
                predictions = masked.counts
            else:
                fields |= {"input_ids": made.tokens, "words": bits(made.starts)}
                predictions = budgets(made.candidates, plan.predictions)
            all_rows.append(layout.rows(**fields))
            counts.update(
                sequences=len(found),
                tokens=int(made.total.sum()),
                predictions=int(predictions.sum()),
                pairs_from_elsewhere=int(made.label.sum()),
            )
        rows = numpy.concatenate(all_rows)
        return rows[generator(f"{plan.seed}/{place}/order").permutation(len(rows))]


def parse(text: bytes) -> tuple[list[list[list[str]]], Counter[str]]:
    """Return documents of sentences of words, and how many lines were skipped for which reason.

    As `corpus.text.documents`, for bytes of which some may be broken.
    """
    skipped: Counter[str] = Counter()
    documents: list[list[list[str]]] = [[]]
    for line in lines_of(text, skipped):
        if len(line) > LONGEST_LINE:
            skipped["lines_too_long"] += 1
        elif words := line.split():
            documents[-1].append(words)
        elif documents[-1]:
            documents.append([])
    return [document for document in documents if document], skipped


def lines_of(text: bytes, skipped: Counter[str]) -> list[str]:
    try:
        return composed(text.decode("utf-8")).split("\n")
    except UnicodeDecodeError:
        lines = []
        for line in text.split(b"\n"):
            try:
                lines.append(composed(line.decode("utf-8")))
            except UnicodeDecodeError:
                skipped["lines_not_utf8"] += 1
        return lines


def held_out(documents: int, share: float, piece: int, seed: int) -> list[int]:
    """Return which of a piece's documents are kept apart, on the average the given share.

    Always two together, so that a pair can take its second segment from the other one. The first
    piece of a text has some whatever the share, so that a small text has, too.
    """
    chooser = random.Random(f"{seed}/{piece}/held out documents")
    twos = math.floor(share * documents / 2 + chooser.random())
    if piece == 0 and share > 0:
        twos = max(twos, 1)
    return chooser.sample(range(documents), 2 * min(twos, documents // 4))


def left_over(documents: Sequence[Sequence[int]], copies: Sequence[Sequence[Example]]) -> int:
    """Return how many sentences are in no example of any copy."""
    if not documents:
        return 0
    used = numpy.zeros(documents[-1][-1] + 1, numpy.int64)
    for found in copies:
        table = numpy.array(found, numpy.int64).reshape(-1, 5)
        numpy.add.at(used, table[:, [0, 2]], 1)
        numpy.add.at(used, table[:, [1, 3]], -1)
    before = numpy.concatenate(([0], numpy.cumsum(numpy.cumsum(used) > 0)))
    return sum(int((numpy.diff(before[list(document)]) == 0).sum()) for document in documents)


def written(rows: Any) -> bytes:
    return compress(frame(rows)) if len(rows) else b""


def generator(place: str) -> Any:
    """Return NumPy's generator for a place in the text, the same in every process."""
    seed = hashlib.sha256(place.encode("utf-8")).digest()
    return numpy.random.Generator(numpy.random.PCG64(int.from_bytes(seed, "little")))
