"""What the model guesses for words hidden in its own text: a glance, not an evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import tensorflow as tf
from tokenizers import Tokenizer

import files
from corpus import wordpiece
from corpus.text import documents
from training.model import masked_logits

__all__ = ["fill_mask"]

WORDS = range(5, 13)  # long enough to guess from, short enough for one line
APART = 97  # sentences between one example and the next


def fill_mask(
    network: Any, tokenizer: Tokenizer, paths: Iterable[str], length: int, wanted: int = 3
) -> Iterator[str]:
    """Yield sentences with one token hidden, the three best guesses, and the truth."""
    special = wordpiece.special_tokens(tokenizer)
    chosen: list[list[int]] = []
    seen = 0
    for sentence in chain.from_iterable(chain.from_iterable(map(read, paths))):
        ids = tokenizer.encode(sentence, add_special_tokens=False).ids
        if len(sentence.split()) in WORDS and len(ids) <= length - 2:
            if seen % APART == 0:
                chosen.append([special.start, *ids, special.separator])
            seen += 1
        if len(chosen) == wanted:
            break
    if not chosen:
        return
    hidden = [len(ids) // 2 for ids in chosen]
    truth = [ids[position] for ids, position in zip(chosen, hidden, strict=True)]
    for ids, position in zip(chosen, hidden, strict=True):
        ids[position] = special.mask
    padded = [ids + [special.padding] * (length - len(ids)) for ids in chosen]
    batch = {
        "input_ids": tf.constant(padded),
        "input_mask": tf.constant([[1] * len(ids) + [0] * (length - len(ids)) for ids in chosen]),
        "segment_ids": tf.zeros([len(chosen), length], tf.int32),
        "masked_lm_positions": tf.constant([[position] for position in hidden]),
    }
    best = tf.math.top_k(masked_logits(network, batch, training=False)[:, 0], 3).indices.numpy()
    for ids, guesses, right in zip(chosen, best, truth, strict=True):
        text = tokenizer.decode(ids[1:-1], skip_special_tokens=False)
        names = ", ".join(tokenizer.id_to_token(int(guess)) for guess in guesses)
        yield f"{text}  guesses: {names}  truth: {tokenizer.id_to_token(right)}"


def read(path: str) -> Iterator[list[str]]:
    return documents(files.lines(path))
