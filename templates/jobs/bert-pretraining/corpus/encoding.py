"""Encodes words as token ids, with a cache of words."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy
from tokenizers import Tokenizer

from corpus.wordpiece import special_tokens

__all__ = ["Encoder"]

MAX_CACHED_WORDS = 300_000  # about 100 MB; then the cache is cleared


class Encoder:
    """A tokenizer with a cache of words.

    A word's tokens do not depend on its neighbors, as the tokenizer never looks past a space.
    Text repeats its words, so this is several times as fast as encoding sentences.
    """

    def __init__(self, tokenizer_json: str) -> None:
        self.tokenizer = Tokenizer.from_str(tokenizer_json)
        # "[MASK]" in a text is five letters and two brackets, not a hidden word.
        self.tokenizer.encode_special_tokens = True
        self.special = special_tokens(self.tokenizer)
        self.vocabulary_size = self.tokenizer.get_vocab_size()
        # bool [V]: the pieces that continue the word of the previous piece
        self.is_continuation = numpy.zeros(self.vocabulary_size, bool)
        vocabulary = self.tokenizer.get_vocab()
        self.is_continuation[[n for piece, n in vocabulary.items() if piece.startswith("##")]] = (
            True
        )
        self.cache: dict[str, list[int]] = {}

    def encode(self, sentences: Sequence[Sequence[str]]) -> tuple[Any, Any]:
        """Return the tokens of all sentences, int32 [T], and the number of tokens of each."""
        words = list(chain.from_iterable(sentences))
        if len(self.cache) > MAX_CACHED_WORDS:
            self.cache.clear()
        new = list(set(words).difference(self.cache))
        encoded = self.tokenizer.encode_batch_fast(new, add_special_tokens=False)
        self.cache.update(zip(new, (encoding.ids for encoding in encoded), strict=True))
        pieces = [self.cache[word] for word in words]
        tokens = numpy.fromiter(chain.from_iterable(pieces), numpy.int32)
        # The number of tokens before each word, and so before each sentence.
        before = numpy.cumsum([0, *map(len, pieces)])
        ends = numpy.cumsum([0, *map(len, sentences)])
        return tokens, numpy.diff(before[ends])
