"""Sample guesses of the exported model for masked words: an illustration, not an evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise, product
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = ["fill_mask", "sentences", "whole_words"]

SENTENCE_WORDS = range(5, 16)  # long enough to guess from, short enough for one line
MAX_PIECES = 3  # of a masked word
SENTENCE_ENDS = frozenset(".!?。")


def fill_mask(model: Any, tokenizer: Any, texts: Iterable[str], count: int = 3) -> Iterator[str]:
    """Yield sentences with one whole word masked, the three best guesses, and the hidden word.

    `model` and `tokenizer` are loaded with `transformers`. In each sentence, the word nearest to
    its middle with few word pieces is masked.
    """
    done, possible = 0, pieces_possible(tokenizer)
    for text in texts:
        if done == count:
            return
        ids = tokenizer(text)["input_ids"]
        words = whole_words(tokenizer.convert_ids_to_tokens(ids))
        if len(words) not in SENTENCE_WORDS:
            continue
        short = [(start, end) for start, end in words if end - start <= MAX_PIECES]
        letters = [span for span in short if decoded(tokenizer, ids, *span).isalpha()]  # no [UNK]
        if not letters:
            continue
        start, end = min(letters, key=lambda span: abs(span[0] - len(ids) // 2))
        hidden = [*ids[:start], *[tokenizer.mask_token_id] * (end - start), *ids[end:]]
        scores = model(tf.constant([hidden])).logits[0, start:end]
        shares = tf.nn.softmax(tf.cast(scores, tf.float32)).numpy() * possible[:, : end - start].T
        guesses = ", ".join(
            f"{tokenizer.decode(list(pieces))} {share:.0%}"
            for pieces, share in likeliest_words(shares)
        )
        before = tokenizer.decode(ids[1:start])
        after = tokenizer.decode(ids[end:-1])
        truth = decoded(tokenizer, ids, start, end)
        yield f"{before} ____ {after} | hidden: {truth} | guesses: {guesses}".strip()
        done += 1


def pieces_possible(tokenizer: Any) -> np.ndarray:
    """Return for each word piece whether it can begin a word, and whether it can continue one."""
    pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    further = np.array([piece.startswith("##") for piece in pieces])
    first = np.array([piece[0].isalnum() for piece in pieces])
    return np.stack([first, *[further] * (MAX_PIECES - 1)], axis=1)


def whole_words(pieces: list[str]) -> list[tuple[int, int]]:
    """Return the spans of words, given [CLS], word pieces and [SEP].

    >>> whole_words(["[CLS]", "seoul", "##ite", "is", "[SEP]"])
    [(1, 3), (3, 4)]
    """
    starts = [n for n, piece in enumerate(pieces[1:-1], 1) if not piece.startswith("##")]
    return list(pairwise([*starts, len(pieces) - 1]))


def likeliest_words(shares: np.ndarray, count: int = 3) -> list[tuple[tuple[int, ...], float]]:
    """Return the likeliest words as word pieces, each piece guessed independently.

    `shares` has a row of probabilities for each hidden piece.
    """
    rows = [[(int(n), float(row[n])) for n in np.argsort(row)[: -count - 1 : -1]] for row in shares]
    words = [
        (tuple(n for n, _ in choice), math.prod(share for _, share in choice))
        for choice in product(*rows)
    ]
    return sorted(words, key=lambda word: -word[1])[:count]


def decoded(tokenizer: Any, ids: list[int], start: int, end: int) -> str:
    return str(tokenizer.decode(ids[start:end]))


def sentences(tokenizer: Any, batches: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield the distinct sentences in records, with masked tokens restored."""
    seen = set()
    for batch in batches:
        for ids in unmasked(batch):
            for sentence in whole_sentences(tokenizer, ids):
                if sentence not in seen:
                    seen.add(sentence)
                    yield sentence


def unmasked(batch: dict[str, Any]) -> Iterator[list[int]]:
    """Yield the sequences of a batch before masking."""
    numbers = {name: value.numpy() for name, value in batch.items()}
    for row, ids in enumerate(numbers["input_ids"]):
        used = numbers["masked_lm_weights"][row] > 0
        original = ids.copy()
        original[numbers["masked_lm_positions"][row][used]] = numbers["masked_lm_ids"][row][used]
        yield original[numbers["input_mask"][row] > 0].tolist()


def whole_sentences(tokenizer: Any, ids: list[int]) -> Iterator[str]:
    """Yield the whole sentences between special tokens; partial ones at the ends are skipped."""
    sentence: list[int] = []
    for number, piece in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True):
        if number in tokenizer.all_special_ids:
            sentence = []
            continue
        if not sentence and piece.startswith("##"):
            continue  # the rest of a word that was cut off
        sentence.append(number)
        if piece in SENTENCE_ENDS:
            yield str(tokenizer.decode(sentence))
            sentence = []
