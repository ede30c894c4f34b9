"""Evaluation of the network on held-out text."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

import files
from training import input_pipeline
from training.model import pretraining_logits, weighted_loss
from training.strategy import Choice

__all__ = ["MAX_BATCHES", "evaluate"]

MAX_BATCHES = 200  # enough for three digits of the loss
SUM = tf.distribute.ReduceOp.SUM


def evaluate(
    network: Any, choice: Choice, folder: str, manifest: dict[str, Any], batch: int
) -> dict[str, float]:
    """Return loss, accuracy and perplexity on the held-out records; empty if there are none.

    At most MAX_BATCHES batches are used. Padding rows of the last batch have an `input_mask` of
    zeros and are ignored.
    """
    held_out_files = manifest.get("held_out", ())
    if not any(entry["sequences"] for entry in held_out_files):
        return {}

    def add_up(part: dict[str, Any]) -> Any:
        words, pairs = pretraining_logits(network, part, training=False)
        weights = part["masked_lm_weights"]
        real = tf.cast(tf.reduce_any(part["input_mask"] > 0, axis=1), tf.float32)
        loss, right = weighted_loss(words, part["masked_lm_ids"], weights)
        pairs_loss = pairs_right = tf.constant(0.0)
        if pairs is not None:
            pairs_loss, pairs_right = weighted_loss(pairs, part["next_sentence_labels"], real)
        sums = [loss, right, tf.reduce_sum(weights), pairs_loss, pairs_right, tf.reduce_sum(real)]
        return tf.stack(sums)

    step = tf.autograph.experimental.do_not_convert(add_up)

    @tf.function
    def on_replicas(iterator: Any) -> Any:
        return choice.strategy.reduce(SUM, choice.run(step, (next(iterator),)), axis=None)

    # A fixed number of batches, with next() inside the function: iterating to the end of a remote
    # dataset, as on a TPU node, logs errors about its end.
    batches = min(
        MAX_BATCHES, math.ceil(sum(entry["sequences"] for entry in held_out_files) / batch)
    )
    examples = input_pipeline.held_out(files.join(folder, "records"), manifest, batch)
    iterator = iter(choice.strategy.experimental_distribute_dataset(examples))
    sums = tf.zeros([6], tf.float64)
    for _ in range(batches):
        sums += tf.cast(on_replicas(iterator), tf.float64)
    loss, right, words, pairs_loss, pairs_right, sequences = (
        float(value) for value in sums.numpy()
    )
    if not words:
        return {}
    measures = {
        "held_out_sequences": round(sequences),
        "held_out_predictions": round(words),
        "held_out_mlm_loss": round(loss / words, 4),
        "held_out_mlm_accuracy": round(right / words, 4),
        "held_out_perplexity": float(f"{math.exp(min(loss / words, 700.0)):.4g}"),
    }
    if manifest.get("pairs", "none") != "none":
        measures["held_out_nsp_loss"] = round(pairs_loss / sequences, 4)
        measures["held_out_nsp_accuracy"] = round(pairs_right / sequences, 4)
    return measures
