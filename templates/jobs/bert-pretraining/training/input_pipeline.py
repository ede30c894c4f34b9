"""The records as datasets of batches: an endless one that starts at any step, and the held-out one.

Every operation is a tf.data operation, so the pipeline also runs without Python: on the host of a
TPU node, which reads the files from the bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

import files
from corpus.layout import BITS, Layout
from errors import JobError
from training.masking import mask

__all__ = ["damaged_file", "dataset", "held_out"]

SHUFFLE_BUFFER = 100_000  # records
FILES_AT_ONCE = 16
BLOCK = 32  # consecutive records from one file
GZIP = "GZIP"


def dataset(folder: str, manifest: dict[str, Any], batch: int, seed: int, step: int) -> Any:
    """Return an endless tf.data.Dataset of batches that starts at the batch of a step.

    Batches are dicts: `input_ids, input_mask, segment_ids` int32 [B, L], `masked_lm_positions,
    masked_lm_ids` int32 [B, P], `masked_lm_weights` float32 [B, P], `next_sentence_labels`
    int32 [B].

    The order of an epoch depends on the seed and the epoch's number alone, and dynamic masks on
    the seed and the step, so a resumed run sees the same batches as an uninterrupted one. Earlier
    records are skipped without being decoded.
    """
    check(folder, manifest["files"])
    names = [files.join(folder, item["name"]) for item in manifest["files"] if item["sequences"]]
    total = sum(item["sequences"] for item in manifest["files"])
    first_epoch, done = divmod(step * batch, total)
    at_once = min(len(names), FILES_AT_ONCE)

    def epoch(number: Any) -> Any:
        # Different for each epoch of each seed: neighboring seeds share no epochs.
        shuffle_seed = number + 1_000_003 * seed
        paths = tf.data.Dataset.from_tensor_slices(names)
        paths = paths.shuffle(len(names), seed=shuffle_seed, reshuffle_each_iteration=False)
        records = paths.interleave(read, at_once, BLOCK, num_parallel_calls=at_once)
        return records.shuffle(
            min(total, SHUFFLE_BUFFER), seed=shuffle_seed, reshuffle_each_iteration=False
        )

    def decode(number: Any, records: Any) -> dict[str, Any]:
        return decode_batch(
            records, layout_of(manifest, manifest["masking"]), manifest, (seed, number)
        )

    epochs = tf.data.Dataset.range(first_epoch, tf.int64.max)
    batches = epochs.flat_map(epoch).skip(done).batch(batch, drop_remainder=True)
    batches = batches.enumerate(step).map(decode, num_parallel_calls=tf.data.experimental.AUTOTUNE)
    return batches.prefetch(tf.data.experimental.AUTOTUNE).with_options(sharding_options())


def held_out(folder: str, manifest: dict[str, Any], batch: int) -> Any:
    """Return a tf.data.Dataset of the held-out records: one pass, always in the same order.

    The last batch is padded with rows whose masks, weights and labels are all zero.
    """
    check(folder, manifest["held_out"])
    layout = layout_of(manifest, "static")
    names = [files.join(folder, item["name"]) for item in manifest["held_out"]]
    missing = -sum(item["sequences"] for item in manifest["held_out"]) % batch
    nothing = bytes(layout.number_bytes * sum(layout.fields.values()))
    records = tf.data.Dataset.from_tensor_slices(tf.constant(names, tf.string)).flat_map(read)
    records = records.concatenate(tf.data.Dataset.from_tensors(nothing).repeat(missing))
    batches = records.batch(batch, drop_remainder=True)
    return batches.map(
        lambda records: decode_batch(records, layout, manifest, (0, 0))
    ).with_options(sharding_options())


def layout_of(manifest: dict[str, Any], masking: str) -> Layout:
    return Layout(
        manifest["sequence_length"], manifest["predictions"], masking, manifest["vocabulary_size"]
    )


def read(path: Any) -> Any:
    return tf.data.TFRecordDataset(path, GZIP)


def sharding_options() -> Any:
    """Return the options that make every host read all files and keep its share of a batch."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return options


@tf.autograph.experimental.do_not_convert  # in TensorFlow 2.12 it does not support strict zip
def decode_batch(
    records: Any, layout: Layout, manifest: dict[str, Any], place: tuple[Any, Any]
) -> dict[str, Any]:
    """Return a batch of records, strings [B], as the model's inputs."""
    numbers = tf.io.decode_raw(records, tf.dtypes.as_dtype(layout.number_type))
    sizes = list(layout.fields.values())
    numbers = tf.ensure_shape(tf.cast(numbers, tf.int32), [records.shape[0], sum(sizes)])
    fields = dict(zip(layout.fields, tf.split(numbers, sizes, axis=1), strict=True))
    column = tf.range(layout.sequence_length)
    real = column < fields["total"]
    batch = {
        "input_mask": tf.cast(real, tf.int32),
        "segment_ids": tf.cast(real & (column >= fields["first"]), tf.int32),
        "next_sentence_labels": fields["label"][:, 0],
    }
    if layout.masking == "static":
        return {
            **batch,
            "input_ids": fields["input_ids"],
            "masked_lm_positions": fields["positions"],
            "masked_lm_ids": fields["ids"],
            "masked_lm_weights": tf.cast(
                tf.range(layout.predictions) < fields["count"], tf.float32
            ),
        }
    separators = (column == fields["first"] - 1) | (column == fields["total"] - 1)
    marks = tf.bitwise.bitwise_and(fields["words"][:, :, None], [1 << n for n in range(BITS)]) > 0
    starts = tf.reshape(marks, [records.shape[0], -1])[:, : layout.sequence_length]
    masked = mask(
        fields["input_ids"],
        real & (column > 0) & ~separators,
        starts,
        layout.predictions,
        manifest["special_tokens"],
        layout.vocabulary_size,
        # The first number leaves room for the offsets that masking adds.
        tf.stack([tf.cast(8 * place[0], tf.int64), tf.cast(place[1], tf.int64)]),
    )
    return {**batch, **masked}


def check(folder: str, items: Sequence[dict[str, Any]]) -> None:
    """Raise JobError if a file is missing or its size differs from the manifest."""

    def problem(item: dict[str, Any]) -> str | None:
        path = files.join(folder, item["name"])
        if not files.exists(path):
            return f"{path} is missing"
        size = files.size_and_mtime(path)[0]
        if size != item["bytes"]:
            return f"{path} has {size:,} bytes instead of {item['bytes']:,}"
        return None

    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        problems = [line for line in pool.map(problem, items) if line]
    if problems:
        more = f", and {len(problems) - 1} more files are damaged" if len(problems) > 1 else ""
        raise JobError(f"{problems[0]}{more}: {rebuild_hint(folder)}", 2)


def damaged_file(error: Exception, folder: str, manifest: dict[str, Any]) -> JobError | None:
    """Return an error with the damaged file if that made reading fail, else None."""
    if not isinstance(error, tf.errors.DataLossError):
        return None
    for item in [*manifest["files"], *manifest["held_out"]]:
        path = files.join(folder, item["name"])
        try:
            for _ in read(path):
                pass
        except tf.errors.DataLossError:
            return JobError(f"{path} is damaged: {rebuild_hint(folder)}", 2)
    return None


def rebuild_hint(folder: str) -> str:
    return f"delete {folder}/manifest.json and recreate the records"
