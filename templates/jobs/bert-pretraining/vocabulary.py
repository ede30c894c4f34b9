"""Text: its documents and sentences, and a WordPiece vocabulary trained on them."""

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from files import file_errors, gfile

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # their ids are 0 to 4
MAX_VOCABULARY = 1 << 16  # records have 16-bit numbers
LETTER_COVERAGE = 0.9999  # share of the text's letters that are in the vocabulary
MAX_LINE_CHARACTERS = 100_000  # a longer line is not a sentence
MAX_DOCUMENT_LINES = 20_000  # a longer document is split
# Control characters, soft hyphens, byte order and direction marks. Joiners are kept: other scripts
# and emoji need them.
INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]"
)


def normalize(line: str) -> str:
    """Return a line in NFC with single spaces, without invisible characters.

    NFC composes decomposed syllables, which is how macOS stores Korean, and changes nothing else.
    """
    return " ".join(INVISIBLE.sub("", unicodedata.normalize("NFC", line)).split())


def read_lines(path: str) -> Iterator[str]:
    """Yield the lines of a text file; bytes that are not UTF-8 become U+FFFD."""
    with file_errors(path), gfile().GFile(path, "rb") as file:
        for line in file:
            yield line.decode("utf-8", "replace")


def documents(lines: Iterable[str], skipped: Counter[str]) -> Iterator[list[str]]:
    """Yield each document as a list of its sentences; an empty line ends a document."""
    sentences: list[str] = []
    for line in lines:
        sentence = normalize(line)
        if "\ufffd" in sentence:
            skipped["lines_not_utf8"] += 1
        elif len(sentence) > MAX_LINE_CHARACTERS:
            skipped["lines_too_long"] += 1
        elif sentence:
            sentences.append(sentence)
        if sentences and (not sentence or len(sentences) == MAX_DOCUMENT_LINES):
            yield sentences
            sentences = []
    if sentences:
        yield sentences


def fingerprint(*parts: Any) -> str:
    """Return a short hash of plain values, the same in every process."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def train_vocabulary(lines: Callable[[], Iterable[str]], size: int) -> Any:
    """Return a cased `tokenizers.Tokenizer`; the same lines always give the same vocabulary.

    `lines` is called twice. Words are split at spaces and punctuation; accents are kept, as
    removing them would take decomposed Korean syllables apart.
    """
    from tokenizers import trainers

    counts = Counter(chain.from_iterable(map(normalize, lines())))
    letters = alphabet(counts, size // 4)
    joined = [letter for letter in letters if continues_word(letter)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        # The trainer breaks ties by the letters' ids, which it assigns in random order. Listed as
        # special tokens, the letters have the same ids every time.
        special_tokens=[*SPECIAL, *letters, *(f"##{letter}" for letter in joined)],
        show_progress=False,
    )
    rare = str.maketrans(dict.fromkeys(set(counts).difference(letters), " "))
    tokenizer = empty_tokenizer({})
    tokenizer.train_from_iterator((normalize(line).translate(rare) for line in lines()), trainer)
    trained = empty_tokenizer(tokenizer.get_vocab())
    trained.add_special_tokens(list(SPECIAL))
    return trained


def alphabet(counts: Counter[str], limit: int) -> list[str]:
    """Return the most frequent letters: of 11,172 Korean syllables, the rarest take up space."""
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


def empty_tokenizer(ids: dict[str, int]) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    bert = normalizers.BertNormalizer(strip_accents=False, lowercase=False)
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), bert])
    # Chinese characters are single words; BertNormalizer puts spaces around them.
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, SPECIAL.index(name)) for name in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def vocabulary_hash(tokenizer: Any) -> str:
    """Return a hash that identifies a vocabulary."""
    return fingerprint(sorted(tokenizer.get_vocab().items()))
