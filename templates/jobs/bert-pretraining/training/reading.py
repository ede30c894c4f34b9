"""The records as an endless dataset of batches that can begin at any step."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import files
from corpus.records import COMPRESSION, INTEGER_FEATURES

__all__ = ["dataset"]

SHUFFLE_BUFFER = 100_000


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
