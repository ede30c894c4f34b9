"""Collect the Korean text that a computer already holds into `data/*.txt`.

Message catalogs, manual pages and guides of installed programs are translated prose: a few
megabytes of real Korean on an ordinary Linux machine. Run this where `tpuctl run` starts; the
files travel with the job. Standard library only.

    python gather.py                      # writes data/messages.txt and its siblings
    python gather.py --max-megabytes 1    # less of it
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
SHORTEST_SENTENCE = 10  # Hangul syllables; below that it is a button's label, not a sentence
HANGUL_SHARE = 0.5  # of all letters, so that command lines and code stay out

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
# What is left of "%s을(를) 열 수 없음" begins with a particle whose noun is gone.
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
    """One kind of text: where it lies below the root, and how a file becomes paragraphs."""

    name: str
    patterns: tuple[str, ...]
    paragraphs: Callable[[bytes], Iterable[str]]


def read_catalog(content: bytes) -> list[str]:
    """Return the translations in a compiled message catalog (GNU `.mo`), in stored order.

    Plural forms come as separate strings. Raises ValueError for anything that is no catalog.
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
    if raw and (found := re.search(rb"charset=([\w-]+)", raw[0])):
        charset = found.group(1).decode("ascii")
    try:
        texts = [
            part.decode(charset, "replace") for entry in raw[1:] for part in entry.split(b"\0")
        ]
    except LookupError as error:
        raise ValueError(f"unknown character set {charset}") from error
    return texts


def clean_message(message: str) -> str:
    """Drop what a program fills in or draws: directives, markup, shortcuts, control codes."""
    for pattern in (TERMINAL_ESCAPE, MARKUP, FORMAT_DIRECTIVE, BRACED_NAME, ACCELERATOR):
        message = pattern.sub("", message)
    # Twice: removing what was inside a pair can leave an empty pair inside another.
    return EMPTY_PAIR.sub("", EMPTY_PAIR.sub("", message))


def catalog_paragraphs(content: bytes) -> Iterator[str]:
    """Yield each message of a catalog, its wrapped lines joined."""
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
    """Join lines that a margin broke; an empty line, a bullet or an option starts anew."""
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
    """Yield the sentences of a paragraph that are Korean prose, in NFC, spaces made single."""
    if paragraph.startswith("-"):
        text = itertools.dropwhile(lambda word: not HANGUL.search(word), paragraph.split())
        paragraph = " ".join(text)
    for piece in SENTENCE_END.split(unicodedata.normalize("NFC", paragraph)):
        words = " ".join(piece.split()).strip(" :;,-–—#|")
        sentence = SPACE_BEFORE_MARK.sub(r"\1", ORPHAN_PARTICLE.sub("", words))
        hangul = len(HANGUL.findall(sentence))
        letters = len(LETTER.findall(sentence))
        is_prose = hangul >= SHORTEST_SENTENCE and hangul >= HANGUL_SHARE * letters
        if is_prose and "\ufffd" not in sentence:
            yield sentence


def decode(content: bytes) -> str:
    """Decode Korean text of unknown age: UTF-8, else the encoding that came before it."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("euc-kr", "replace")


def below(*patterns: str) -> tuple[str, ...]:
    """Fill {root} and {ko} of path patterns with every combination known."""
    pairs = itertools.product(patterns, LANGUAGE_ROOTS, KOREAN_FOLDERS)
    return tuple(dict.fromkeys(text.format(root=root, ko=folder) for text, root, folder in pairs))


SOURCES = (
    Source("manuals", below("{root}/man/{ko}/man*/*"), manual_paragraphs),
    Source(
        "guides",
        below("{root}/vim/vim*/tutor/tutor*.{ko}", "{root}/doc/*/{ko}/*.txt*"),
        guide_paragraphs,
    ),
    Source(
        "messages",
        below(
            "{root}/locale/{ko}/LC_MESSAGES/*.mo",
            "{root}/locale-langpack/{ko}/LC_MESSAGES/*.mo",
            "{root}/vim/vim*/lang/{ko}/LC_MESSAGES/*.mo",
        ),
        catalog_paragraphs,
    ),
)


def read_plain(path: Path) -> bytes:
    """Return the bytes of a file, unpacked when its name says that it is packed."""
    openers = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    opener = openers.get(path.suffix)
    if opener is None:
        return path.read_bytes()
    with opener(path, "rb") as packed:
        return packed.read()


def gather(root: Path, output: Path, maximum_bytes: int, report: Callable[[str], None]) -> int:
    """Write one text file for each kind of source found below `root`; return the bytes written.

    A document is the text of one file; documents are apart by an empty line. No sentence is
    written twice. A file that cannot be read is named and skipped.
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
            kept = list(within(fresh, maximum_bytes - written - size))
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


def new_sentences(paragraphs: Iterable[str], seen: set[str]) -> list[str]:
    """Return the Korean sentences not seen before, and remember them."""
    fresh = dict.fromkeys(
        sentence for paragraph in paragraphs for sentence in korean_sentences(paragraph)
    )
    kept = [sentence for sentence in fresh if sentence not in seen]
    seen.update(kept)
    return kept


def within(sentences: Iterable[str], maximum_bytes: int) -> Iterator[str]:
    """Yield sentences while they fit."""
    for sentence in sentences:
        maximum_bytes -= len(sentence.encode()) + 1
        if maximum_bytes < 0:
            return
        yield sentence


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Collect Korean text found on this computer.")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "data")
    parser.add_argument("--max-megabytes", type=float, default=20.0, help="stop there (default 20)")
    parser.add_argument("--root", type=Path, default=Path("/"), help="look below this folder")
    options = parser.parse_args(arguments)
    try:
        written = gather(options.root, options.output, int(options.max_megabytes * 1e6), print)
    except OSError as error:
        print(f"error: cannot write {options.output}: {error}", file=sys.stderr)
        return 1
    if not written:
        print(
            f"no Korean text found below {options.root}: "
            "the job will train on the small sample that comes with it (sample/)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
