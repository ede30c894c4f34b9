"""The WordPiece vocabulary: trained once from the text, kept beside the records.

**Normalization** is NFC, then BERT's own cleaning: control characters go, every kind of space is
a space, Chinese characters stand alone. Case and accents stay: taking accents off would take
decomposed Korean syllables apart. Words are then parted at spaces and punctuation.
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
SAMPLE_MEGABYTES = 200  # of text suffice for a vocabulary; more costs memory, a line's worth each
COVERED = 0.9999  # of the text's letters are to be in the vocabulary


def train(
    paths: Sequence[str], vocabulary_size: int, sample_megabytes: int = SAMPLE_MEGABYTES
) -> Tokenizer:
    """Train a cased vocabulary on text files; the same files always give the same vocabulary.

    Of a text larger than the sample, pieces of a megabyte are taken at equal distances, so that
    memory and time stay bounded. Counting words uses all cores.
    """
    text = Text(tuple((path, files.stamp(path)[0]) for path in paths))
    numbers = sampled(text.pieces, sample_megabytes)
    counts = Counter[str]()
    for lines in sample(text, numbers):
        counts.update("".join(lines))
    letters = alphabet(counts, vocabulary_size // 4)
    joined = [f"##{letter}" for letter in letters if joins(letter)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary_size,
        # The trainer breaks ties by the letters' ids, and hands those out in random order. Named
        # in advance like special tokens, they have the same ids every time.
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


def sampled(pieces: int, most: int) -> list[int]:
    """Return which pieces of a text are taken: all, or as many as asked at equal distances."""
    taken = min(pieces, most)
    return [number * pieces // taken for number in range(taken)]


def sample(text: Text, numbers: Iterable[int]) -> Iterator[list[str]]:
    """Yield the lines of each of these pieces; what is not UTF-8 is left out."""
    with RangeReader() as read:
        for number in numbers:
            piece = text.piece(number, read).decode("utf-8", "ignore")
            yield [line for line in map(normalize, piece.split("\n")) if line]


def alphabet(counts: Counter[str], most: int) -> list[str]:
    """Return the most frequent letters, in order of their codes.

    Korean has 11,172 syllables, so the usual limit of 1,000 letters would leave many unknown.
    Those so rare that all of them together hardly occur would only take the places of words.
    """
    ranked = sorted(counts.keys() - {" "}, key=lambda letter: (-counts[letter], letter))
    wanted = COVERED * sum(counts[letter] for letter in ranked)
    letters = []
    for letter in ranked[:most]:
        if wanted <= 0:
            break
        letters.append(letter)
        wanted -= counts[letter]
    return sorted(letters)


def joins(letter: str) -> bool:
    """Tell whether a letter can go on with a word; punctuation and Chinese characters do not."""
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


def load(folder: str, fingerprint: str | None = None) -> Tokenizer | None:
    """Return the saved tokenizer, or None when there is none or it has another fingerprint."""
    manifest = files.read_json(files.join(folder, "manifest.json"))
    if not manifest or fingerprint not in (None, manifest.get("fingerprint")):
        return None
    text = files.read_text(files.join(folder, "tokenizer.json"))
    return Tokenizer.from_str(text) if text else None
