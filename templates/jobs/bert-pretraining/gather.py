"""Collect Korean text installed on this computer into `data/*.txt`.

Message catalogs, manual pages and guides of installed programs are translated prose: a few
megabytes of real Korean on an ordinary Linux machine. Run this before `tpuctl run`, on the same
computer; the files are uploaded with the job. Standard library only.

    python gather.py                      # writes data/messages.txt and others
    python gather.py --max-megabytes 1    # stops after 1 MB
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import itertools
import lzma
import re
import struct
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "Source",
    "clean_message",
    "gather",
    "guide_paragraphs",
    "korean_sentences",
    "main",
    "manual_paragraphs",
    "read_catalog",
]

# A folder is Korean when it is called ko, ko_KR, ko.UTF-8 and so on; "kok" (Konkani) is not.
KOREAN_FOLDERS = ("ko", "ko_*", "ko.*")
LANGUAGE_ROOTS = ("usr/share", "usr/local/share", "opt/homebrew/share", "opt/local/share")

HANGUL = re.compile(r"[가-힣]")
LETTER = re.compile(r"[^\W\d_]")
MIN_SENTENCE = 10  # Hangul syllables; anything shorter is a label, not a sentence
HANGUL_SHARE = 0.5  # of all letters; excludes command lines and code

SENTENCE_END = re.compile(r"(?<=[.!?。])[\"'’”)」]?\s+(?=\S)")
FORMAT_DIRECTIVE = re.compile(
    r"%%|%(?:\d+\$)?(?:\([^)]*\))?[-+ #0']*(?:\*|\d+)?(?:\.(?:\*|\d+))?(?:hh|h|ll|l|j|z|t|L|q)?"
    r"(?:<?PRI\w+>?|[a-zA-Z])"
)
BRACED_NAME = re.compile(r"\$?\{[^{}]*\}|\$\([^()]*\)")
MARKUP = re.compile(r"</?[A-Za-z][^<>]*>|&(?:\w+|#\d+);")
ACCELERATOR = re.compile(r"\s*\([_&]\w\)|(?<!\w)_(?=\w)")
EMPTY_PAIR = re.compile(r"\(\s*\)|\[\s*\]|<\s*>|'\s*'|\"\s*\"|`\s*'|‘\s*’|“\s*”|«\s*»|「\s*」")
SPACE_BEFORE_MARK = re.compile(r"\s+([.,!?:;)])(?=\s|$)")
# "%s을(를) 열 수 없음" without its placeholder begins with a particle that has no noun.
ORPHAN_PARTICLE = re.compile(r"^[가-힣]{0,2}\([가-힣]{1,2}\)\s+")
TERMINAL_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")

ROFF_SPACE = re.compile(r"\\[ ~0|^]")
ROFF_INVISIBLE = re.compile(
    r"\\f(?:\(..|\[[^\]]*\]|.)|\\s[-+]?\d+|\\\*(?:\(..|\[[^\]]*\]|.)|\\m\[[^\]]*\]|\\[&:%/,)c]|\\\".*"
)
ROFF_DASH = re.compile(r"\\(?:-|\(em|\(en|\[em\]|\[en\])")
ROFF_QUOTE = re.compile(r"\\(?:\((?:aq|cq|oq|dq|lq|rq)|\[(?:aq|cq|oq|dq|lq|rq)\])")
ROFF_OTHER = re.compile(r"\\(?:\(..|\[[^\]]*\])")
ROFF_INLINE = re.compile(r"^[.']\s*(?:B|I|R|BI|IB|BR|RB|IR|RI|SB|SM)\s+(.*)$")


@dataclass(frozen=True)
class Source:
    """A kind of text: path patterns below the root, and a function that extracts paragraphs."""

    name: str
    patterns: tuple[str, ...]
    paragraphs: Callable[[bytes], Iterable[str]]


def read_catalog(content: bytes) -> list[str]:
    """Return the translations in a compiled message catalog (GNU `.mo`), in stored order.

    Plural forms are separate strings. Raises ValueError if the content is not a valid catalog.
    """
    order = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}.get(content[:4])
    if order is None:
        raise ValueError("not a message catalog")
    try:
        count, _, table = struct.unpack_from(f"{order}3I", content, 8)
        if table + count * 8 > len(content):
            raise ValueError("the message catalog is cut short")
        entries = struct.iter_unpack(f"{order}2I", content[table : table + count * 8])
        raw = [content[offset : offset + length] for length, offset in entries]
    except struct.error as error:
        raise ValueError("the message catalog is cut short") from error
    charset = "utf-8"
    if raw and (match := re.search(rb"charset=([\w-]+)", raw[0])):
        charset = match.group(1).decode("ascii")
    try:
        texts = [
            part.decode(charset, "replace") for entry in raw[1:] for part in entry.split(b"\0")
        ]
    except LookupError as error:
        raise ValueError(f"unknown character set {charset}") from error
    return texts


def clean_message(message: str) -> str:
    """Remove placeholders, markup, keyboard shortcuts and control codes from a message."""
    for pattern in (TERMINAL_ESCAPE, MARKUP, FORMAT_DIRECTIVE, BRACED_NAME, ACCELERATOR):
        message = pattern.sub("", message)
    # Twice: removing an empty pair can leave another empty pair around it.
    return EMPTY_PAIR.sub("", EMPTY_PAIR.sub("", message))


def catalog_paragraphs(content: bytes) -> Iterator[str]:
    """Yield each message of a catalog, with wrapped lines joined."""
    for message in read_catalog(content):
        yield from joined_lines(clean_message(message).splitlines())


def manual_paragraphs(content: bytes) -> Iterator[str]:
    """Yield the paragraphs of a manual page, without its roff requests and escapes."""
    lines: list[str] = []
    verbatim = False
    for line in decode(content).splitlines():
        if re.match(r"^[.']\s*(?:nf|EX|TS)\b", line):
            verbatim = True
        elif re.match(r"^[.']\s*(?:fi|EE|TE)\b", line):
            verbatim = False
        elif verbatim:
            continue
        elif inline := ROFF_INLINE.match(line):
            lines.append(plain_roff(inline.group(1).replace('"', "")))
        elif line.startswith((".", "'")) and not line.startswith(("'\\", ".\\")):
            lines.append("")
        elif not line.startswith((".", "'")):
            lines.append(plain_roff(line))
    yield from joined_lines(lines)


def plain_roff(line: str) -> str:
    line = ROFF_INVISIBLE.sub("", ROFF_SPACE.sub(" ", line))
    line = ROFF_QUOTE.sub("'", ROFF_DASH.sub("-", line))
    return ROFF_OTHER.sub("", line).replace("\\e", "\\").replace("\\", "")


def guide_paragraphs(content: bytes) -> Iterator[str]:
    """Yield the paragraphs of a plain text guide."""
    yield from joined_lines(TERMINAL_ESCAPE.sub("", line) for line in decode(content).splitlines())


def joined_lines(lines: Iterable[str]) -> Iterator[str]:
    """Join wrapped lines; an empty line, a bullet or an option starts a new paragraph."""
    paragraph: list[str] = []
    for line in itertools.chain(lines, [""]):
        bare = line.strip(" \t=~|*")
        starts = not bare or re.match(r"^(?:-|--?\w|[•*o]\s|\d+[.)]\s|\(\d+\)|#)", bare)
        if starts and paragraph:
            yield " ".join(paragraph)
            paragraph = []
        if bare:
            paragraph.append(bare)


def korean_sentences(paragraph: str) -> Iterator[str]:
    """Yield the Korean sentences of a paragraph, in NFC with single spaces."""
    if paragraph.startswith("-"):
        text = itertools.dropwhile(lambda word: not HANGUL.search(word), paragraph.split())
        paragraph = " ".join(text)
    for piece in SENTENCE_END.split(unicodedata.normalize("NFC", paragraph)):
        words = " ".join(piece.split()).strip(" :;,-–—#|")
        sentence = SPACE_BEFORE_MARK.sub(r"\1", ORPHAN_PARTICLE.sub("", words))
        hangul = len(HANGUL.findall(sentence))
        letters = len(LETTER.findall(sentence))
        is_prose = hangul >= MIN_SENTENCE and hangul >= HANGUL_SHARE * letters
        if is_prose and "\ufffd" not in sentence:
            yield sentence


def decode(content: bytes) -> str:
    """Decode Korean text as UTF-8, or else as the older EUC-KR."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("euc-kr", "replace")


def under_roots(*patterns: str) -> tuple[str, ...]:
    """Expand {root} and {ko} in path patterns to every combination."""
    pairs = itertools.product(patterns, LANGUAGE_ROOTS, KOREAN_FOLDERS)
    return tuple(dict.fromkeys(text.format(root=root, ko=folder) for text, root, folder in pairs))


SOURCES = (
    Source("manuals", under_roots("{root}/man/{ko}/man*/*"), manual_paragraphs),
    Source(
        "guides",
        under_roots("{root}/vim/vim*/tutor/tutor*.{ko}", "{root}/doc/*/{ko}/*.txt*"),
        guide_paragraphs,
    ),
    Source(
        "messages",
        under_roots(
            "{root}/locale/{ko}/LC_MESSAGES/*.mo",
            "{root}/locale-langpack/{ko}/LC_MESSAGES/*.mo",
            "{root}/vim/vim*/lang/{ko}/LC_MESSAGES/*.mo",
        ),
        catalog_paragraphs,
    ),
)


def read_plain(path: Path) -> bytes:
    """Return the bytes of a file, unpacked if its name ends in .gz, .bz2 or .xz."""
    openers = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    opener = openers.get(path.suffix)
    if opener is None:
        return path.read_bytes()
    with opener(path, "rb") as packed:
        return packed.read()


def gather(root: Path, output: Path, maximum_bytes: int, report: Callable[[str], None]) -> int:
    """Write one text file per kind of source below `root`; return the number of bytes written.

    A document is the text of one file; documents are separated by an empty line. No sentence is
    written twice. Unreadable files are reported and skipped.
    """
    seen: set[str] = set()
    written = 0
    for source in SOURCES:
        files = sorted({path for pattern in source.patterns for path in root.glob(pattern)})
        documents: list[str] = []
        size = sentences = 0
        for path in files:
            if not path.is_file() or written + size >= maximum_bytes:
                continue
            try:
                fresh = new_sentences(source.paragraphs(read_plain(path)), seen)
            except (OSError, EOFError, ValueError, lzma.LZMAError) as error:
                report(f"skipped {path}: {error}")
                continue
            kept = list(fitting(fresh, maximum_bytes - written - size))
            if kept:
                documents.append("\n".join(kept) + "\n")
                size += len(documents[-1].encode()) + 1
                sentences += len(kept)
        if documents:
            output.mkdir(parents=True, exist_ok=True)
            target = output / f"{source.name}.txt"
            target.write_text("\n".join(documents), encoding="utf-8")
            written += size
            report(
                f"{target}: {size / 1e6:.2f} MB, {sentences} sentences "
                f"from {len(documents)} of {len(files)} files"
            )
    return written


def new_sentences(paragraphs: Iterable[str], earlier: set[str]) -> list[str]:
    """Return the Korean sentences not in `earlier`, and add them to it."""
    fresh = dict.fromkeys(
        sentence for paragraph in paragraphs for sentence in korean_sentences(paragraph)
    )
    unseen = [sentence for sentence in fresh if sentence not in earlier]
    earlier.update(unseen)
    return unseen


def fitting(sentences: Iterable[str], maximum_bytes: int) -> Iterator[str]:
    """Yield sentences while they fit."""
    for sentence in sentences:
        maximum_bytes -= len(sentence.encode()) + 1
        if maximum_bytes < 0:
            return
        yield sentence


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Collect Korean text found on this computer.")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "data")
    parser.add_argument(
        "--max-megabytes", type=float, default=20.0, help="maximum size of the text (default 20)"
    )
    parser.add_argument("--root", type=Path, default=Path("/"), help="folder to search")
    options = parser.parse_args(arguments)
    try:
        written = gather(options.root, options.output, int(options.max_megabytes * 1e6), print)
    except OSError as error:
        print(f"error: cannot write {options.output}: {error}", file=sys.stderr)
        return 1
    if not written:
        print(
            f"no Korean text found below {options.root}: "
            "the job will train on its small sample (sample/)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
