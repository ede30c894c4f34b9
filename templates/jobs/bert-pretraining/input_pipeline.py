"""The records as datasets of masked batches: an endless one from any step on, and the held-out one.

Every operation is a tf.data operation, so the pipeline also runs without Python: on the host of a
TPU node, which reads the files from the bucket. All shapes are static.
"""

import argparse
import math
from typing import Any

import tensorflow as tf

from data import COMPRESSION
from files import JobError, join, names, read_text, sizes
from vocabulary import SPECIAL

SHUFFLE_BUFFER = 100_000  # records
FILES_AT_ONCE = 16
BLOCK = 32  # consecutive records from one file
MASKED_SHARE = 0.15  # of a sequence's tokens, as in the BERT paper
ROUNDS = 3  # of filling the rest of a sequence's budget with words that still fit
SEPARATOR, MASK = SPECIAL.index("[SEP]"), SPECIAL.index("[MASK]")
AUTOTUNE = tf.data.AUTOTUNE


def dataset(folder: str, manifest: dict[str, Any], options: argparse.Namespace, step: int) -> Any:
    """Return an endless tf.data.Dataset of batches that starts at the batch of a step.

    Batches are dicts: `input_ids, input_mask, segment_ids` int32 [B, L], `masked_lm_positions,
    masked_lm_ids` int32 [B, P], `masked_lm_weights` float32 [B, P], `next_sentence_labels`
    int32 [B]. `options` are those of `pretrain.py`: batch, seed, predictions, whole_words.

    The order of an epoch depends on the seed and the epoch's number alone, and masks on the seed
    and the step, so a resumed run sees the same batches as an uninterrupted one.
    """
    paths = complete(folder, manifest["files"])
    batch, seed, total = options.batch, options.seed, manifest["counts"]["sequences"]
    first_epoch, done = divmod(step * batch, total)
    at_once = min(len(paths), FILES_AT_ONCE)

    def epoch(number: Any) -> Any:
        # Different for each epoch of each seed: neighboring seeds share no epochs.
        order = {"seed": number + 1_000_003 * seed, "reshuffle_each_iteration": False}
        shuffled = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths), **order)
        records = shuffled.interleave(read, at_once, BLOCK, num_parallel_calls=at_once)
        return records.shuffle(min(total, SHUFFLE_BUFFER), **order)

    batches = tf.data.Dataset.range(first_epoch, tf.int64.max).flat_map(epoch).skip(done)
    batches = batches.batch(batch, drop_remainder=True).enumerate(step)
    decode = decoder(folder, manifest, options, seed)
    return with_sharding(batches.map(decode, num_parallel_calls=AUTOTUNE).prefetch(AUTOTUNE))


def held_out(folder: str, manifest: dict[str, Any], options: argparse.Namespace) -> Any:
    """Return a tf.data.Dataset of the held-out records: one pass, always with the same masks.

    The last batch is padded with rows whose masks and weights are all zero.
    """
    paths = complete(folder, manifest["held_out_files"])
    missing = -manifest["counts"]["held_out_sequences"] % options.batch
    padding = bytes(2 * (manifest["sequence_length"] + 1))
    records = tf.data.Dataset.from_tensor_slices(tf.constant(paths, tf.string)).flat_map(read)
    records = records.concatenate(tf.data.Dataset.from_tensors(padding).repeat(missing))
    batches = records.batch(options.batch, drop_remainder=True).enumerate()
    return with_sharding(batches.map(decoder(folder, manifest, options, 0)))


def read(path: Any) -> Any:
    return tf.data.TFRecordDataset(path, COMPRESSION)


def with_sharding(batches: Any) -> Any:
    """Make every host read all files and keep its share of a batch."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return batches.with_options(options)


def default_predictions(sequence_length: int) -> int:
    """Return the number of tokens to predict per sequence: 15 %, at most 20."""
    return max(1, min(20, math.ceil(MASKED_SHARE * sequence_length)))


def decoder(folder: str, manifest: dict[str, Any], options: argparse.Namespace, seed: int) -> Any:
    """Return the function that turns records into the model's inputs, with words masked."""
    length = manifest["sequence_length"]
    continues = tf.constant(continuations(folder) if options.whole_words else [False])

    @tf.autograph.experimental.do_not_convert  # it has no Python control flow on tensors
    def decode(number: Any, records: Any) -> dict[str, Any]:
        numbers = tf.cast(tf.io.decode_raw(records, tf.uint16), tf.int32)
        numbers = tf.ensure_shape(numbers, [records.shape[0], length + 1])
        tokens = numbers[:, 1:]
        real, is_separator = tokens > 0, tf.equal(tokens, SEPARATOR)
        segments = tf.cumsum(tf.cast(is_separator, tf.int32), axis=1, exclusive=True)
        starts = candidates = real & ~is_separator & (tf.range(length) > 0)
        if options.whole_words:
            follows = tf.gather(continues, tokens[:, 1:]) & candidates[:, :-1]
            starts &= ~tf.pad(follows, [[0, 0], [1, 0]])
        # The first number leaves room for the offsets that masking adds.
        of_masks = tf.stack([tf.constant(8 * seed, tf.int64), number])
        vocabulary_size = manifest["vocabulary_size"]
        return {
            "input_mask": tf.cast(real, tf.int32),
            "segment_ids": tf.where(real, segments, 0),
            "next_sentence_labels": numbers[:, 0],
            **mask(tokens, candidates, starts, options.predictions, vocabulary_size, of_masks),
        }

    return decode


def continuations(folder: str) -> list[bool]:
    """Return for each token whether it continues the word of the previous token."""
    from tokenizers import Tokenizer

    path = join(folder.rpartition("/")[0], "tokenizer", "tokenizer.json")
    pieces = Tokenizer.from_str(read_text(path)).get_vocab()
    return [piece.startswith("##") for piece in sorted(pieces, key=pieces.__getitem__)]


def mask(
    tokens: Any, candidates: Any, starts: Any, predictions: int, vocabulary_size: int, seed: Any
) -> dict[str, Any]:
    """Mask up to 15 % of each sequence: 80 % become [MASK], 10 % random tokens, 10 % stay.

    `tokens` is int32 [B, L]; `candidates` and `starts` are bool [B, L]: the tokens that may be
    masked, and those that begin a word; `seed` is int64 [2], and determines the masks. Returns
    `input_ids` [B, L] and `masked_lm_positions`, `masked_lm_ids`, `masked_lm_weights` [B, P].
    """
    rows, length = tokens.shape
    is_hidden = choose_tokens(candidates, starts, predictions, seed)
    # The chosen positions, ascending: the largest distances from the end.
    largest = tf.math.top_k(tf.where(is_hidden, length - tf.range(length), 0), predictions).values
    used = largest > 0
    positions = tf.where(used, length - largest, 0)
    ids = tf.gather(tokens, positions, batch_dims=1)

    def uniform(offset: int, *bounds: Any) -> Any:
        offsets = tf.constant([offset, 0], tf.int64)
        return tf.random.stateless_uniform([rows, predictions], seed + offsets, *bounds)

    chances, others = uniform(1), uniform(2, len(SPECIAL), vocabulary_size, tf.int32)
    replacements = tf.where(chances < 0.8, MASK, tf.where(chances < 0.9, others, ids))
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
    counts = tf.reshape(tf.cast(candidates, tf.int32), [-1])
    counts = tf.reshape(tf.math.unsorted_segment_sum(counts, flat, rows * length), [rows, length])

    # Twice as many words as predictions: enough to skip long ones.
    chances = tf.random.stateless_uniform([rows, length], seed)
    order = tf.math.top_k(tf.where(counts > 0, chances, -1.0), min(length, 2 * predictions)).indices
    counts = tf.gather(counts, order, batch_dims=1)
    fitting = tf.zeros_like(counts, tf.bool)
    for _ in range(ROUNDS):
        tried = tf.where(fitting | (counts > left), 0, counts)
        new = (tried > 0) & (tf.cumsum(tried, axis=1) <= left)
        fitting |= new
        left -= tf.reduce_sum(tf.where(new, counts, 0), axis=1, keepdims=True)
    places = tf.stack([tf.repeat(tf.range(rows), order.shape[1]), tf.reshape(order, [-1])], 1)
    by_word = tf.scatter_nd(places, tf.cast(tf.reshape(fitting, [-1]), tf.int32), [rows, length])
    return candidates & (tf.gather(by_word, word, batch_dims=1) > 0)


def complete(folder: str, listed: dict[str, int]) -> list[str]:
    """Return the paths of files. Raises JobError if one is missing or has another size."""
    missing = sorted(set(listed).difference(names(folder)))
    if missing:
        raise broken(folder, missing[0], "is missing")
    for name, size in sizes(folder, list(listed)).items():
        if size != listed[name]:
            raise broken(folder, name, f"has {size:,} bytes instead of {listed[name]:,}")
    return [join(folder, name) for name in listed]


def damaged_file(error: Exception, folder: str, manifest: dict[str, Any]) -> JobError | None:
    """Return an error with the damaged file if that made reading fail, else None."""
    if not isinstance(error, tf.errors.DataLossError):
        return None
    for name in [*manifest["files"], *manifest["held_out_files"]]:
        try:
            for _ in read(join(folder, name)):
                pass
        except tf.errors.DataLossError:
            return broken(folder, name, "is damaged")
    return None


def broken(folder: str, name: str, problem: str) -> JobError:
    advice = f"delete {folder} and create the records again"
    return JobError(f"{join(folder, name)} {problem}: {advice}", 2)
