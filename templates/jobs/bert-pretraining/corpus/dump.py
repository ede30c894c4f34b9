"""Wikipedia's XML dumps: blocks of a file become pages, wherever the blocks are cut.

A dump is one `<mediawiki>` element with a `<page>` for each page (schema:
https://www.mediawiki.org/xml/export-0.11.xsd). A multistream dump is many bzip2 streams one
behind the other, mostly of 100 pages each; they can be unpacked apart from each other.
"""

from __future__ import annotations

import bz2
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO
from xml.etree import ElementTree

from corpus.markup import Namespaces

__all__ = [
    "OPEN",
    "READ",
    "Page",
    "namespaces",
    "read_page",
    "split_pages",
    "streams",
    "unpack",
]

READ = 1 << 20  # bytes read at once
FEED = 1 << 16  # bytes unpacked at once; so much is lost around damage
LONGEST_STREAM = 16 << 20  # packed bytes; a longer stream is unpacked as it is read
STREAM = re.compile(rb"BZh[1-9]1AY&SY")  # a bzip2 stream that holds something begins so

OPEN, CLOSE = b"<page>", b"</page>"
NAMESPACE = re.compile(rb'<namespace key="(-?\d+)"[^>]*>([^<]*)</namespace>')
FILES, CATEGORIES = 6, 14  # https://www.mediawiki.org/wiki/Manual:Namespace
REDIRECT = re.compile(r"\s*#(?:redirect|넘겨주기)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Page:
    """A page's title and markup; `skipped` says why it is no article, else it is empty."""

    title: str
    text: str
    skipped: str = ""


def streams(file: IO[bytes], skipped: Counter[str]) -> Iterator[tuple[bool, bytes]]:
    """Yield a bzip2 file in parts, each with whether it is packed still.

    Packed parts are whole streams, for `unpack`; of a stream too long for that the content comes.
    """
    held = b""
    while block := file.read(READ):
        held += block
        cut = last_stream(held)
        if cut > 0:
            yield True, held[:cut]
            held = held[cut:]
        elif len(held) >= LONGEST_STREAM:
            held = yield from long_stream(held, file, skipped)
    if held:
        yield True, held


def last_stream(packed: bytes) -> int:
    """Return where the last stream in these bytes begins, or -1."""
    place = packed.rfind(b"1AY&SY")
    while place >= 4 and not STREAM.match(packed, place - 4):
        place = packed.rfind(b"1AY&SY", 0, place)
    return place - 4 if place >= 4 else -1


def long_stream(
    held: bytes, file: IO[bytes], skipped: Counter[str]
) -> Iterator[tuple[bool, bytes]]:
    """Yield the content of the stream that begins with these bytes; return what is behind it."""
    decoder = bz2.BZ2Decompressor()
    rest = memoryview(held)
    content: list[bytes] = []
    size = 0
    while not decoder.eof:
        if not rest:
            rest = memoryview(file.read(READ))
            if not rest:
                skipped["cut short"] += 1
                break
        piece, rest = rest[:FEED], rest[FEED:]
        try:
            content.append(decoder.decompress(piece))
        except (OSError, ValueError):
            skipped["damaged stream"] += 1
            break
        size += len(content[-1])
        if size >= 4 * READ:
            yield False, b"".join(content)
            content, size = [], 0
    if content:
        yield False, b"".join(content)
    if decoder.eof:
        return decoder.unused_data + bytes(rest)
    return next_stream(bytes(rest), file)


def next_stream(held: bytes, file: IO[bytes]) -> bytes:
    """Skip to where the next stream begins; return what was read from there on."""
    while not (found := STREAM.search(held)):
        block = file.read(READ)
        if not block:
            return b""
        held = held[-9:] + block
    return held[found.start() :]


def unpack(packed: bytes, skipped: Counter[str]) -> bytes:
    """Return the content of whole bzip2 streams; of a damaged one what comes before the damage."""
    content: list[bytes] = []
    start = 0
    while start < len(packed):
        decoder = bz2.BZ2Decompressor()
        place = start
        try:
            while place < len(packed) and not decoder.eof:
                content.append(decoder.decompress(packed[place : place + FEED]))
                place += FEED
            damage = "" if decoder.eof else "cut short"
        except (OSError, ValueError):
            damage = "damaged stream"
        if not damage:
            start = min(place, len(packed)) - len(decoder.unused_data)
            if not packed[start:].strip(b"\0"):
                break
        else:
            skipped[damage] += 1
            found = STREAM.search(packed, start + 1)
            start = found.start() if found else len(packed)
    return b"".join(content)


def split_pages(xml: bytes, skipped: Counter[str]) -> tuple[bytes, list[bytes], bytes]:
    """Return what comes before the first page, the whole pages, and what is behind the last.

    A page without its end is skipped, unless it is the last: its end may be in the next block.
    """
    head, *parts = xml.split(OPEN)
    if not parts:
        return head, [], b""
    pages: list[bytes] = []
    tail = b""
    for number, part in enumerate(parts):
        inside, closed, behind = part.partition(CLOSE)
        if closed:
            pages.append(OPEN + inside + CLOSE)
            tail = behind
        elif number == len(parts) - 1:
            tail = OPEN + part
        else:
            skipped["broken page"] += 1
    return head, pages, tail


def read_page(xml: bytes) -> Page:
    """Read a `<page>` element. Raises ValueError when it is none or its XML is broken."""
    try:
        page = ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        raise ValueError(f"broken page: {error}") from error
    title = page.findtext("title") or ""
    if page.findtext("ns", "0").strip() != "0":
        return Page(title, "", "not an article")
    if page.find("redirect") is not None:
        return Page(title, "", "redirect")
    revisions = page.findall("revision")
    if not revisions:
        return Page(title, "", "no text")
    latest = revisions[-1]
    if latest.findtext("model", "wikitext").strip() != "wikitext":
        return Page(title, "", "not wiki text")
    text = latest.findtext("text") or ""
    if REDIRECT.match(text):
        return Page(title, "", "redirect")
    return Page(title, text, "" if text.strip() else "no text")


def namespaces(xml: bytes) -> Namespaces:
    """Return the words for pictures and categories, with those that the dump's head names."""
    named = {int(key): name.decode("utf-8", "ignore") for key, name in NAMESPACE.findall(xml)}
    return Namespaces().with_names(named.get(FILES, "file"), named.get(CATEGORIES, "category"))
