"""The WordPiece vocabulary: trained once from the text, kept beside the records."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import files
from corpus.masking import SpecialTokens
from corpus.text import documents

__all__ = ["load", "save", "special_tokens", "train", "vocabulary_hash"]

PADDING, UNKNOWN, START, SEPARATOR, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL = [PADDING, UNKNOWN, START, SEPARATOR, MASK]


def train(paths: list[str], vocabulary_size: int) -> Tokenizer:
    """Train a cased vocabulary on text files; the same files always give the same vocabulary.

    Accents stay: taking them off would take decomposed Korean syllables apart.
    """
    letters = alphabet(paths, vocabulary_size // 4)
    tokenizer = empty_tokenizer({})
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary_size,
        # The trainer breaks ties by the letters' ids, and hands those out in random order. Named
        # in advance like special tokens, they have the same ids every time.
        special_tokens=[*SPECIAL, *letters, *(f"##{letter}" for letter in letters)],
        show_progress=False,
    )
    unknown = str.maketrans(dict.fromkeys(set(alphabet(paths)).difference(letters), " "))
    tokenizer.train_from_iterator((text.translate(unknown) for text in sentences(paths)), trainer)
    trained = empty_tokenizer(tokenizer.get_vocab())
    trained.add_special_tokens(SPECIAL)
    return trained


def empty_tokenizer(ids: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFC(),
            normalizers.BertNormalizer(
                clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=False
            ),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def alphabet(paths: list[str], most: int | None = None) -> list[str]:
    """Return the letters of the text in order, only the most frequent ones if so asked.

    Korean has 11,172 syllables, so the usual limit of 1,000 letters would leave many unknown.
    """
    counts = Counter(chain.from_iterable(sentences(paths)))
    del counts[" "]
    ranked = sorted(counts, key=lambda letter: (-counts[letter], letter))
    return sorted(ranked[:most])


def sentences(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        yield from chain.from_iterable(documents(files.lines(path)))


def special_tokens(tokenizer: Tokenizer) -> SpecialTokens:
    """Return the ids of the tokens that masking needs."""
    return SpecialTokens(
        *(tokenizer.token_to_id(name) for name in (PADDING, START, SEPARATOR, MASK))
    )


def vocabulary(tokenizer: Tokenizer) -> list[str]:
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.__getitem__)


def vocabulary_hash(tokenizer: Tokenizer) -> str:
    """Return a hash that tells one vocabulary from another."""
    return hashlib.sha256("\n".join(vocabulary(tokenizer)).encode("utf-8")).hexdigest()


def save(tokenizer: Tokenizer, folder: str, fingerprint: str) -> None:
    """Write the tokenizer so that this job and `transformers` can load it."""
    files.write_text(
        files.join(folder, "vocab.txt"), "".join(f"{token}\n" for token in vocabulary(tokenizer))
    )
    files.write_text(files.join(folder, "tokenizer.json"), tokenizer.to_str(pretty=True))
    settings = {
        "tokenizer_class": "BertTokenizerFast",
        "do_lower_case": False,
        "strip_accents": False,
        "pad_token": PADDING,
        "unk_token": UNKNOWN,
        "cls_token": START,
        "sep_token": SEPARATOR,
        "mask_token": MASK,
    }
    files.write_json(files.join(folder, "tokenizer_config.json"), settings)
    # Last, so that a stage cut short is done again.
    manifest = {
        "fingerprint": fingerprint,
        "vocabulary_size": tokenizer.get_vocab_size(),
        "vocabulary_sha256": vocabulary_hash(tokenizer),
    }
    files.write_json(files.join(folder, "manifest.json"), manifest)


def load(folder: str, fingerprint: str) -> Tokenizer | None:
    """Return the tokenizer saved under this fingerprint, or None when it is another or none."""
    if files.read_json(files.join(folder, "manifest.json")).get("fingerprint") != fingerprint:
        return None
    text = files.read_text(files.join(folder, "tokenizer.json"))
    return Tokenizer.from_str(text) if text else None
