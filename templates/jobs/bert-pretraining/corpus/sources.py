"""Where text comes from: each source as blocks of some megabytes, in the source's order.

Only reading happens here. What a block says is found out in the workers (corpus/documents.py).
"""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, Any

import files
from corpus import dump
from corpus.markup import Namespaces
from errors import JobError

__all__ = ["Block", "Source", "find", "identity", "read", "size"]

KINDS = {".xml": "dump", ".txt": "text", ".jsonl": "json", ".ndjson": "json"}
DATASET = "hf:"
READ = 1 << 20  # bytes
UNPACKED = 1 << 16  # bytes read at once of a packed file; so much is lost where it is cut short
LONGEST_DOCUMENT = 16 << 20  # bytes; a longer one of plain text is cut at the end of a line
HEAD = 1 << 16  # bytes of a dump that hold its <siteinfo>
ROWS = 256  # of a dataset in one block


@dataclass(frozen=True)
class Source:
    """A file with text, or a dataset's name. `packing` is "", ".gz" or ".bz2"."""

    path: str
    kind: str
    packing: str = ""


@dataclass(frozen=True)
class Block:
    """A part of a source.

    Its content is bytes as `form` says: "packed" (bzip2 streams of XML), "xml" (both cut
    anywhere), "text" or "json" (whole documents or lines); or with "rows" a list of texts.
    `place` is how many bytes of the source, or of a dataset's rows, were read so far.
    """

    form: str
    content: Any
    place: int
    names: Namespaces | None = None


def find(arguments: list[str]) -> list[Source]:
    """Return the sources that files, folders and dataset names stand for, in this order.

    Of a folder, the files of known kinds in order of name, without what lies below.
    """
    found: list[Source] = []
    for argument in arguments:
        if argument.startswith(DATASET):
            found.append(Source(argument, "dataset"))
            continue
        source = source_of(argument)
        if source is not None:
            if not files.exists(argument):
                raise JobError(f"no such file: {argument}", 2)
            found.append(source)
            continue
        within = [source_of(files.join(argument, name)) for name in files.names(argument)]
        known = [one for one in within if one is not None]
        if not known:
            raise JobError(
                f"no text in {argument}: a source is a file or a folder of files named .xml, .txt "
                f"or .jsonl (also with .gz or .bz2), or {DATASET}owner/name",
                2,
            )
        found += known
    return found


def source_of(path: str) -> Source | None:
    """Return what a file's name says about it, or None for a name of no known kind."""
    name = PurePosixPath(path).name
    packing = next((suffix for suffix in (".gz", ".bz2") if name.endswith(suffix)), "")
    kind = KINDS.get(PurePosixPath(name.removesuffix(packing)).suffix)
    # Split dumps are called …-multistream1.xml-p1p82407.bz2.
    if kind is None and ".xml-p" in name:
        kind = "dump"
    # A dump's index of titles is no text.
    return None if kind is None or "-multistream-index" in name else Source(path, kind, packing)


def identity(source: Source) -> list[Any]:
    """Return what tells this source from another: changes when its content does.

    Of a file in a bucket, which would have to be read whole for that, size and time must do. A
    dataset is taken to stay as it is.
    """
    if source.kind == "dataset":
        return [source.path]
    name = PurePosixPath(source.path).name
    if files.is_remote(source.path):
        return [name, *files.stamp(source.path)]
    return [name, files.sha256(source.path)]


def size(found: list[Source]) -> int | None:
    """Return the bytes of all files, or None when there is a dataset, whose size nobody knows."""
    if any(source.kind == "dataset" for source in found):
        return None
    return sum(files.stamp(source.path)[0] for source in found)


def read(source: Source, field: str, split: str, skipped: Counter[str]) -> Iterator[Block]:
    """Yield the blocks of a source; what cannot be read is counted in `skipped`.

    `field` and `split` say what to take of a dataset.
    """
    if source.kind == "dataset":
        yield from dataset_rows(source.path.removeprefix(DATASET), field, split)
        return
    with files.reading(source.path), files.opened(source.path, "rb") as file:
        if source.kind == "dump":
            names = dump.namespaces(dump_head(file, source.packing))
            file.seek(0)
            parts: Iterator[tuple[bool, bytes]]
            if source.packing == ".bz2":
                parts = dump.streams(file, skipped)
            else:
                parts = ((False, part) for part in blocks(unpacked(file, source.packing), skipped))
            for is_packed, content in parts:
                yield Block("packed" if is_packed else "xml", content, file.tell(), names)
        else:
            mark = b"\n\n" if source.kind == "text" else b"\n"
            for content in cut(blocks(unpacked(file, source.packing), skipped), mark):
                yield Block(source.kind, content, file.tell())


def dump_head(file: IO[bytes], packing: str) -> bytes:
    if packing == ".bz2":
        return dump.unpack(file.read(dump.READ), Counter())[:HEAD]
    return next(blocks(unpacked(file, packing), Counter()), b"")[:HEAD]


def unpacked(file: IO[bytes], packing: str) -> IO[bytes] | gzip.GzipFile | bz2.BZ2File:
    if packing == ".gz":
        return gzip.GzipFile(fileobj=file)
    return bz2.BZ2File(file) if packing == ".bz2" else file


def blocks(file: IO[bytes] | gzip.GzipFile | bz2.BZ2File, skipped: Counter[str]) -> Iterator[bytes]:
    """Yield a file in blocks, up to where it turns out to be cut short or damaged."""
    size = UNPACKED if isinstance(file, (bz2.BZ2File, gzip.GzipFile)) else READ
    while True:
        try:
            block = file.read(size)
        except EOFError:
            skipped["cut short"] += 1
            return
        except (gzip.BadGzipFile, zlib.error, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            skipped["damaged file"] += 1
            return
        if not block:
            return
        yield block


def cut(parts: Iterator[bytes], mark: bytes) -> Iterator[bytes]:
    """Yield the same bytes, cut behind marks; without one, behind a line or anywhere."""
    held = b""
    for part in parts:
        held += part.replace(b"\r\n", b"\n")
        place = held.rfind(mark)
        if place < 0 and len(held) >= LONGEST_DOCUMENT:
            place = held.rfind(b"\n")
            place = place if place >= 0 else len(held)
        if place >= 0:
            yield held[: place + len(mark)]
            held = held[place + len(mark) :]
    if held:
        yield held


def dataset_rows(name: str, field: str, split: str) -> Iterator[Block]:
    """Yield the texts of a Hugging Face dataset as they arrive; nothing is kept on disk."""
    try:
        import datasets
    except ImportError as error:
        raise JobError(
            f"{DATASET}{name} needs the package datasets: pip install datasets"
        ) from error
    path, configuration = name, None
    if not name.startswith((".", "/")):  # a folder of this computer has no configurations
        path = "/".join(name.split("/")[:2])
        configuration = "/".join(name.split("/")[2:]) or None
    place = 0
    texts: list[str] = []
    try:
        rows = datasets.load_dataset(path, configuration, split=split, streaming=True)
        for row in rows:
            if field not in row:
                raise JobError(
                    f"{DATASET}{name} has no column {field}; it has {', '.join(row)}: use --field",
                    2,
                )
            text = row[field]
            texts.append(text if isinstance(text, str) else "")
            place += len(texts[-1].encode("utf-8", "replace"))
            if len(texts) == ROWS:
                yield Block("rows", texts, place)
                texts = []
    except JobError:
        raise
    except Exception as error:  # the package has no common error; the network has many
        told = str(error).strip().splitlines() or [type(error).__name__]
        raise JobError(f"cannot read {DATASET}{name}: {told[0]}") from error
    if texts:
        yield Block("rows", texts, place)
