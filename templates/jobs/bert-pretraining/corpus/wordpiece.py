"""The WordPiece vocabulary: trained once from the text, stored next to the records.

**Normalization** is NFC, then BERT's cleaning: control characters are removed, every kind of
space becomes a space, Chinese characters become single words. Case and accents are kept: removing
accents would take decomposed Korean syllables apart. Words are then split at spaces and
punctuation.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import files
from corpus.masking import SpecialTokens
from corpus.pieces import Text
from corpus.ranges import RangeReader
from corpus.text import normalize

__all__ = ["SAMPLE_MEGABYTES", "load", "save", "special_tokens", "train", "vocabulary_hash"]

PADDING, UNKNOWN, START, SEPARATOR, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL = [PADDING, UNKNOWN, START, SEPARATOR, MASK]
SAMPLE_MEGABYTES = 200  # of text are enough for a vocabulary; more only costs memory
LETTER_COVERAGE = 0.9999  # share of the text's letters that are in the vocabulary


def train(
    paths: Sequence[str], vocabulary_size: int, sample_megabytes: int = SAMPLE_MEGABYTES
) -> Tokenizer:
    """Train a cased vocabulary on text files; the same files always give the same vocabulary.

    A text larger than the sample is sampled in pieces of a megabyte at equal distances, so memory
    and time are bounded. Counting words uses all cores.
    """
    text = Text(tuple((path, files.size_and_mtime(path)[0]) for path in paths))
    numbers = sample_numbers(text.pieces, sample_megabytes)
    counts = Counter[str]()
    for lines in sample(text, numbers):
        counts.update("".join(lines))
    letters = alphabet(counts, vocabulary_size // 4)
    joined = [f"##{letter}" for letter in letters if continues_word(letter)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary_size,
        # The trainer breaks ties by the letters' ids, which it assigns in random order. Listed as
        # special tokens, the letters have the same ids every time.
        special_tokens=[*SPECIAL, *letters, *joined],
        show_progress=False,
    )
    rare = str.maketrans(dict.fromkeys(set(counts).difference(letters), " "))
    tokenizer = empty_tokenizer({})
    tokenizer.train_from_iterator(
        ([line.translate(rare) for line in lines] for lines in sample(text, numbers)), trainer
    )
    trained = empty_tokenizer(tokenizer.get_vocab())
    trained.add_special_tokens(SPECIAL)
    return trained


def sample_numbers(pieces: int, limit: int) -> list[int]:
    """Return the numbers of the sampled pieces: all, or `limit` of them at equal distances."""
    count = min(pieces, limit)
    return [number * pieces // count for number in range(count)]


def sample(text: Text, numbers: Iterable[int]) -> Iterator[list[str]]:
    """Yield the lines of each of these pieces; bytes that are not UTF-8 are skipped."""
    with RangeReader() as read:
        for number in numbers:
            piece = text.piece(number, read).decode("utf-8", "ignore")
            yield [line for line in map(normalize, piece.split("\n")) if line]


def alphabet(counts: Counter[str], limit: int) -> list[str]:
    """Return the most frequent letters, in order of their code points.

    Korean has 11,172 syllables, so the usual limit of 1,000 letters would leave many unknown. The
    rarest are left out: they would only take up space of words.
    """
    ranked = sorted(counts.keys() - {" "}, key=lambda letter: (-counts[letter], letter))
    missing = LETTER_COVERAGE * sum(counts[letter] for letter in ranked)
    letters = []
    for letter in ranked[:limit]:
        if missing <= 0:
            break
        letters.append(letter)
        missing -= counts[letter]
    return sorted(letters)


def continues_word(letter: str) -> bool:
    """Whether a letter can continue a word; punctuation and Chinese characters cannot."""
    tokenizer = empty_tokenizer({})
    normalized = tokenizer.normalizer.normalize_str(f"a{letter}a")
    return len(tokenizer.pre_tokenizer.pre_tokenize_str(normalized)) == 1


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


def special_tokens(tokenizer: Tokenizer) -> SpecialTokens:
    """Return the ids of the tokens that masking needs."""
    return SpecialTokens(*(tokenizer.token_to_id(name) for name in SPECIAL))


def vocabulary(tokenizer: Tokenizer) -> list[str]:
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.__getitem__)


def vocabulary_hash(tokenizer: Tokenizer) -> str:
    """Return a hash that identifies a vocabulary."""
    return hashlib.sha256("\n".join(vocabulary(tokenizer)).encode("utf-8")).hexdigest()


def save(tokenizer: Tokenizer, folder: str, fingerprint: str) -> None:
    """Write the tokenizer in the format that this job and `transformers` load."""
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
    # Last, so that an interrupted stage is repeated.
    manifest = {
        "fingerprint": fingerprint,
        "vocabulary_size": tokenizer.get_vocab_size(),
        "vocabulary_sha256": vocabulary_hash(tokenizer),
    }
    files.write_json(files.join(folder, "manifest.json"), manifest)


def load(folder: str, fingerprint: str | None = None) -> Tokenizer | None:
    """Return the saved tokenizer, or None if it is missing or has another fingerprint."""
    manifest = files.read_json(files.join(folder, "manifest.json"))
    if not manifest or fingerprint not in (None, manifest.get("fingerprint")):
        return None
    text = files.read_text(files.join(folder, "tokenizer.json"))
    return Tokenizer.from_str(text) if text else None
