"""Masked sequences as TFRecord files."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tokenizers import Tokenizer

import files
from corpus import wordpiece
from corpus.masking import MaskedSequence, mask, pack
from corpus.text import documents

__all__ = ["COMPRESSION", "INTEGER_FEATURES", "RecordsPlan", "load", "write"]

COMPRESSION = "GZIP"
INTEGER_FEATURES = (
    "input_ids",
    "input_mask",
    "segment_ids",
    "masked_lm_positions",
    "masked_lm_ids",
)


@dataclass(frozen=True)
class RecordsPlan:
    """What decides the content of the records, besides the text and the vocabulary."""

    sequence_length: int
    predictions: int
    duplication: int
    shards: int
    seed: int


def write(
    paths: Iterable[str], tokenizer: Tokenizer, plan: RecordsPlan, folder: str, fingerprint: str
) -> dict[str, Any]:
    """Write the shards and, last, `manifest.json`; return what the manifest says.

    The records depend on the arguments alone. Each copy of a text is masked in another way.
    """
    names = [f"part-{n:05d}-of-{plan.shards:05d}.tfrecord.gz" for n in range(plan.shards)]
    counts = {"documents": 0, "sentences": 0, "sequences": 0, "tokens": 0, "predictions": 0}
    per_file = [0] * plan.shards
    with files.writing(folder), ExitStack() as stack:
        tf.io.gfile.makedirs(folder)
        writers = [
            stack.enter_context(tf.io.TFRecordWriter(files.join(folder, name), COMPRESSION))
            for name in names
        ]
        for number, document in enumerate(all_documents(paths)):
            counts["documents"] += 1
            counts["sentences"] += len(document)
            for sequence in sequences(document, number, tokenizer, plan):
                shard = counts["sequences"] % plan.shards
                writers[shard].write(serialise(sequence))
                per_file[shard] += 1
                counts["sequences"] += 1
                counts["tokens"] += sum(sequence.input_mask)
                counts["predictions"] += int(sum(sequence.masked_lm_weights))
    manifest = {
        "fingerprint": fingerprint,
        **vars(plan),
        "counts": counts,
        "vocabulary_size": tokenizer.get_vocab_size(),
        "vocabulary_sha256": wordpiece.vocabulary_hash(tokenizer),
        "compression": COMPRESSION,
        "files": [{"name": name, "sequences": per_file[n]} for n, name in enumerate(names)],
    }
    files.write_json(files.join(folder, "manifest.json"), manifest)
    return manifest


def load(folder: str, fingerprint: str) -> dict[str, Any] | None:
    """Return the manifest of the records written under this fingerprint, else None."""
    manifest = files.read_json(files.join(folder, "manifest.json"))
    return manifest if manifest.get("fingerprint") == fingerprint else None


def all_documents(paths: Iterable[str]) -> Iterator[list[str]]:
    for path in paths:
        yield from documents(files.lines(path))


def sequences(
    document: list[str], number: int, tokenizer: Tokenizer, plan: RecordsPlan
) -> Iterator[MaskedSequence]:
    """Yield every copy of one document's masked sequences."""
    special, vocabulary_size = wordpiece.special_tokens(tokenizer), tokenizer.get_vocab_size()
    encoded = tokenizer.encode_batch_fast(document, add_special_tokens=False)
    blocks = list(pack((item.ids for item in encoded), plan.sequence_length - 2))
    for copy in range(plan.duplication):
        # Seeded by place, not by order of work, so that the work can be shared out one day.
        generator = random.Random(f"{plan.seed}/{number}/{copy}")
        for block in blocks:
            yield mask(
                block,
                special,
                plan.sequence_length,
                plan.predictions,
                vocabulary_size,
                generator,
            )


def serialise(sequence: MaskedSequence) -> bytes:
    feature = {
        name: tf.train.Feature(int64_list=tf.train.Int64List(value=getattr(sequence, name)))
        for name in INTEGER_FEATURES
    }
    weights = tf.train.FloatList(value=sequence.masked_lm_weights)
    feature["masked_lm_weights"] = tf.train.Feature(float_list=weights)
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    return bytes(example.SerializeToString())
