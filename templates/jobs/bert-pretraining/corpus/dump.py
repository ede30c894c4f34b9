"""Wikipedia's XML dumps: reads pages from blocks of a file, wherever the blocks are cut.

A dump is one `<mediawiki>` element with a `<page>` for each page (schema:
https://www.mediawiki.org/xml/export-0.11.xsd). A multistream dump is a sequence of bzip2 streams,
mostly of 100 pages each, that can be unpacked independently.
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
    "READ_BYTES",
    "Page",
    "namespaces",
    "read_page",
    "split_pages",
    "streams",
    "unpack",
]

READ_BYTES = 1 << 20  # bytes read at once
FEED_BYTES = 1 << 16  # unpacked at once; up to this much is lost around damage
MAX_STREAM_BYTES = 16 << 20  # packed; a longer stream is unpacked as it is read
STREAM = re.compile(rb"BZh[1-9]1AY&SY")  # start of a bzip2 stream that is not empty

OPEN, CLOSE = b"<page>", b"</page>"
NAMESPACE = re.compile(rb'<namespace key="(-?\d+)"[^>]*>([^<]*)</namespace>')
FILES, CATEGORIES = 6, 14  # https://www.mediawiki.org/wiki/Manual:Namespace
REDIRECT = re.compile(r"\s*#(?:redirect|넘겨주기)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Page:
    """A page's title and markup; `skipped` is the reason it is not an article, or empty."""

    title: str
    text: str
    skipped: str = ""


def streams(file: IO[bytes], skipped: Counter[str]) -> Iterator[tuple[bool, bytes]]:
    """Yield a bzip2 file in parts, each with whether it is still packed.

    Packed parts are whole streams, for `unpack`; a stream too long for that is yielded unpacked.
    """
    buffer = b""
    while block := file.read(READ_BYTES):
        buffer += block
        cut = last_stream(buffer)
        if cut > 0:
            yield True, buffer[:cut]
            buffer = buffer[cut:]
        elif len(buffer) >= MAX_STREAM_BYTES:
            buffer = yield from long_stream(buffer, file, skipped)
    if buffer:
        yield True, buffer


def last_stream(packed: bytes) -> int:
    """Return where the last stream in these bytes begins, or -1."""
    position = packed.rfind(b"1AY&SY")
    while position >= 4 and not STREAM.match(packed, position - 4):
        position = packed.rfind(b"1AY&SY", 0, position)
    return position - 4 if position >= 4 else -1


def long_stream(
    buffer: bytes, file: IO[bytes], skipped: Counter[str]
) -> Iterator[tuple[bool, bytes]]:
    """Yield the content of the stream that begins with these bytes; return the bytes after it."""
    decoder = bz2.BZ2Decompressor()
    rest = memoryview(buffer)
    content: list[bytes] = []
    size = 0
    while not decoder.eof:
        if not rest:
            rest = memoryview(file.read(READ_BYTES))
            if not rest:
                skipped["cut short"] += 1
                break
        piece, rest = rest[:FEED_BYTES], rest[FEED_BYTES:]
        try:
            content.append(decoder.decompress(piece))
        except (OSError, ValueError):
            skipped["damaged stream"] += 1
            break
        size += len(content[-1])
        if size >= 4 * READ_BYTES:
            yield False, b"".join(content)
            content, size = [], 0
    if content:
        yield False, b"".join(content)
    if decoder.eof:
        return decoder.unused_data + bytes(rest)
    return next_stream(bytes(rest), file)


def next_stream(buffer: bytes, file: IO[bytes]) -> bytes:
    """Skip to the start of the next stream; return the bytes read from there on."""
    while not (match := STREAM.search(buffer)):
        block = file.read(READ_BYTES)
        if not block:
            return b""
        buffer = buffer[-9:] + block
    return buffer[match.start() :]


def unpack(packed: bytes, skipped: Counter[str]) -> bytes:
    """Return the content of whole bzip2 streams; of a damaged one, up to the damage."""
    content: list[bytes] = []
    start = 0
    while start < len(packed):
        decoder = bz2.BZ2Decompressor()
        position = start
        try:
            while position < len(packed) and not decoder.eof:
                content.append(decoder.decompress(packed[position : position + FEED_BYTES]))
                position += FEED_BYTES
            damage = "" if decoder.eof else "cut short"
        except (OSError, ValueError):
            damage = "damaged stream"
        if not damage:
            start = min(position, len(packed)) - len(decoder.unused_data)
            if not packed[start:].strip(b"\0"):
                break
        else:
            skipped[damage] += 1
            match = STREAM.search(packed, start + 1)
            start = match.start() if match else len(packed)
    return b"".join(content)


def split_pages(xml: bytes, skipped: Counter[str]) -> tuple[bytes, list[bytes], bytes]:
    """Return the bytes before the first page, the whole pages, and the bytes after the last.

    An unclosed page is skipped, unless it is the last: its end may be in the next block.
    """
    head, *parts = xml.split(OPEN)
    if not parts:
        return head, [], b""
    pages: list[bytes] = []
    tail = b""
    for number, part in enumerate(parts):
        inside, closed, after = part.partition(CLOSE)
        if closed:
            pages.append(OPEN + inside + CLOSE)
            tail = after
        elif number == len(parts) - 1:
            tail = OPEN + part
        else:
            skipped["broken page"] += 1
    return head, pages, tail


def read_page(xml: bytes) -> Page:
    """Parse a `<page>` element. Raises ValueError if the XML is broken."""
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
    """Return the link prefixes of pictures and categories, including those in the dump's head."""
    names = {int(key): name.decode("utf-8", "ignore") for key, name in NAMESPACE.findall(xml)}
    return Namespaces().with_names(names.get(FILES, "file"), names.get(CATEGORIES, "category"))
