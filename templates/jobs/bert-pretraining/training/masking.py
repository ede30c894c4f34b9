"""Dynamic masking: `corpus.masking` as tf.data operations on whole batches.

All shapes are static and no Python code runs in the pipeline, so it also works in a remote
process, as on a TPU node.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from corpus.plan import MASKED_SHARE

__all__ = ["mask"]

ROUNDS = 3  # as in corpus.masking


def mask(
    tokens: Any,
    candidates: Any,
    starts: Any,
    predictions: int,
    special: dict[str, int],
    vocabulary_size: int,
    seed: Any,
) -> dict[str, Any]:
    """Mask up to 15 % of each sequence; deterministic for a seed.

    `tokens` is int32 [B, L]; `candidates` and `starts` are bool [B, L]: the tokens that may be
    masked, and those that begin a word; `seed` is int64 [2]. Returns `input_ids` [B, L] and
    `masked_lm_positions`, `masked_lm_ids`, `masked_lm_weights` [B, P].
    """
    rows, length = tokens.shape
    chosen_tokens = choose_tokens(candidates, starts, predictions, seed)
    # The chosen positions, ascending: the largest distances from the end.
    distances = tf.where(chosen_tokens, length - tf.range(length), 0)
    largest = tf.math.top_k(distances, predictions).values
    used = largest > 0
    positions = tf.where(used, length - largest, 0)
    ids = tf.gather(tokens, positions, batch_dims=1)

    chances = tf.random.stateless_uniform([rows, predictions], tf.add(seed, (1, 0)))
    reserved = sorted(special.values())
    others = tf.random.stateless_uniform(
        [rows, predictions], tf.add(seed, (2, 0)), 0, vocabulary_size - len(reserved), tf.int32
    )
    for token in reserved:  # ascending: shift random ids past each special token
        others += tf.cast(others >= token, tf.int32)
    replacements = tf.where(chances < 0.8, special["mask"], tf.where(chances < 0.9, others, ids))
    # Unused predictions write the original token of position zero.
    replacements = tf.where(used, replacements, ids)
    places = tf.stack([tf.repeat(tf.range(rows), predictions), tf.reshape(positions, [-1])], 1)
    return {
        "input_ids": tf.tensor_scatter_nd_update(tokens, places, tf.reshape(replacements, [-1])),
        "masked_lm_positions": positions,
        "masked_lm_ids": tf.where(used, ids, 0),
        "masked_lm_weights": tf.cast(used, tf.float32),
    }


def choose_tokens(candidates: Any, starts: Any, predictions: int, seed: Any) -> Any:
    """Choose words in random order as long as they fit into the budget; bool [B, L]."""
    rows, length = candidates.shape
    share = tf.round(MASKED_SHARE * tf.reduce_sum(tf.cast(candidates, tf.float64), 1))
    left = tf.clip_by_value(tf.cast(share, tf.int32), 1, predictions)[:, None]

    # The word that each token belongs to, and the number of tokens of each word.
    word = tf.maximum(tf.cumsum(tf.cast(starts, tf.int32), axis=1) - 1, 0)
    flat = tf.reshape(word + length * tf.range(rows)[:, None], [-1])
    sizes = tf.math.unsorted_segment_sum(
        tf.reshape(tf.cast(candidates, tf.int32), [-1]), flat, rows * length
    )
    sizes = tf.reshape(sizes, [rows, length])

    # Twice as many words as predictions: enough to skip long ones.
    chances = tf.random.stateless_uniform([rows, length], seed)
    order = tf.math.top_k(tf.where(sizes > 0, chances, -1.0), min(length, 2 * predictions)).indices
    sizes = tf.gather(sizes, order, batch_dims=1)
    fitting = tf.zeros_like(sizes, tf.bool)
    for _ in range(ROUNDS):
        sizes_tried = tf.where(fitting | (sizes > left), 0, sizes)
        new = (sizes_tried > 0) & (tf.cumsum(sizes_tried, axis=1) <= left)
        fitting |= new
        left -= tf.reduce_sum(tf.where(new, sizes, 0), axis=1, keepdims=True)
    places = tf.stack([tf.repeat(tf.range(rows), order.shape[1]), tf.reshape(order, [-1])], 1)
    by_word = tf.scatter_nd(places, tf.cast(tf.reshape(fitting, [-1]), tf.int32), [rows, length])
    return candidates & (tf.gather(by_word, word, batch_dims=1) > 0)
