"""Masked sequences as TFRecord files, and back as a dataset."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tokenizers import Tokenizer

import files
import wordpiece
from corpus import documents
from masking import MaskedSequence, mask, pack

__all__ = ["RecordsPlan", "dataset", "load", "write"]

COMPRESSION = "GZIP"
SHUFFLE_BUFFER = 100_000
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


def dataset(folder: str, manifest: dict[str, Any], batch: int, seed: int, step: int) -> Any:
    """Return an endless tf.data.Dataset of batches that begins at the batch of a step.

    The order of an epoch depends on the seed and the epoch's number alone, so what follows a
    step is the same whether or not the run was interrupted there.
    """
    length, predictions = manifest["sequence_length"], manifest["predictions"]
    total = manifest["counts"]["sequences"]
    names = [files.join(folder, item["name"]) for item in manifest["files"]]
    first_epoch, done = divmod(step * batch, total)
    features = {
        name: tf.io.FixedLenFeature(
            [predictions if name.startswith("masked_lm") else length], tf.int64
        )
        for name in INTEGER_FEATURES
    }
    features["masked_lm_weights"] = tf.io.FixedLenFeature([predictions], tf.float32)

    def epoch(number: Any) -> Any:
        examples = tf.data.TFRecordDataset(names, COMPRESSION)
        return examples.shuffle(
            min(total, SHUFFLE_BUFFER), seed=number + seed, reshuffle_each_iteration=False
        )

    def parse(serialised: Any) -> dict[str, Any]:
        parsed = tf.io.parse_example(serialised, features)
        return {
            name: value if value.dtype == tf.float32 else tf.cast(value, tf.int32)
            for name, value in parsed.items()
        }

    epochs = tf.data.Dataset.range(first_epoch, tf.int64.max)
    batches = epochs.flat_map(epoch).skip(done).batch(batch, drop_remainder=True)
    options = tf.data.Options()
    # Every host reads all files and keeps its own share of the batches.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return batches.map(parse).prefetch(tf.data.AUTOTUNE).with_options(options)
