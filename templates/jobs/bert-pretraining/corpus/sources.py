"""Text sources: each is read as blocks of a few megabytes, in order.

Blocks are parsed in the workers (corpus/documents.py).
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
READ_BYTES = 1 << 20
UNPACKED_BYTES = 1 << 16  # read at once from a packed file; lost if it is truncated
MAX_DOCUMENT_BYTES = 16 << 20  # a longer plain text document is cut at the end of a line
HEAD_BYTES = 1 << 16  # of a dump; includes its <siteinfo>
ROWS_PER_BLOCK = 256  # of a dataset


@dataclass(frozen=True)
class Source:
    """A text file, or the name of a dataset. `packing` is "", ".gz" or ".bz2"."""

    path: str
    kind: str
    packing: str = ""


@dataclass(frozen=True)
class Block:
    """A part of a source.

    Its content depends on `format`: bytes for "packed" (bzip2 streams of XML) and "xml", both cut
    anywhere, and "text" and "json" (whole documents or lines); a list of texts for "rows".
    `offset` is the number of bytes of the source, or of a dataset's rows, read so far.
    """

    format: str
    content: Any
    offset: int
    names: Namespaces | None = None


def find(arguments: list[str]) -> list[Source]:
    """Return the sources for files, folders and dataset names, in this order.

    A folder stands for its files of known types in order of name, without subfolders.
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
        sources_within = [source for source in within if source is not None]
        if not sources_within:
            raise JobError(
                f"no text in {argument}: a source is a file or a folder of .xml, .txt or .jsonl "
                f"files (optionally .gz or .bz2), or {DATASET}owner/name",
                2,
            )
        found += sources_within
    return found


def source_of(path: str) -> Source | None:
    """Return the source for a file name, or None if its type is unknown."""
    name = PurePosixPath(path).name
    packing = next((suffix for suffix in (".gz", ".bz2") if name.endswith(suffix)), "")
    kind = KINDS.get(PurePosixPath(name.removesuffix(packing)).suffix)
    # Split dumps are called …-multistream1.xml-p1p82407.bz2.
    if kind is None and ".xml-p" in name:
        kind = "dump"
    # A dump's index of titles is not text.
    return None if kind is None or "-multistream-index" in name else Source(path, kind, packing)


def identity(source: Source) -> list[Any]:
    """Return the identity of a source, which changes with its content.

    For a file in a bucket it is size and modification time, as hashing would read the whole file.
    A dataset is assumed not to change.
    """
    if source.kind == "dataset":
        return [source.path]
    name = PurePosixPath(source.path).name
    if files.is_remote(source.path):
        return [name, *files.size_and_mtime(source.path)]
    return [name, files.sha256(source.path)]


def size(text_sources: list[Source]) -> int | None:
    """Return the total size of all files, or None with a dataset, whose size is unknown."""
    if any(source.kind == "dataset" for source in text_sources):
        return None
    return sum(files.size_and_mtime(source.path)[0] for source in text_sources)


def read(source: Source, field: str, split: str, skipped: Counter[str]) -> Iterator[Block]:
    """Yield the blocks of a source; unreadable parts are counted in `skipped`.

    `field` and `split` select the text of a dataset.
    """
    if source.kind == "dataset":
        yield from dataset_rows(source.path.removeprefix(DATASET), field, split)
        return
    with files.read_errors(source.path), files.open_file(source.path, "rb") as file:
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
            for content in split_at(blocks(unpacked(file, source.packing), skipped), mark):
                yield Block(source.kind, content, file.tell())


def dump_head(file: IO[bytes], packing: str) -> bytes:
    if packing == ".bz2":
        return dump.unpack(file.read(dump.READ_BYTES), Counter())[:HEAD_BYTES]
    return next(blocks(unpacked(file, packing), Counter()), b"")[:HEAD_BYTES]


def unpacked(file: IO[bytes], packing: str) -> IO[bytes] | gzip.GzipFile | bz2.BZ2File:
    if packing == ".gz":
        return gzip.GzipFile(fileobj=file)
    return bz2.BZ2File(file) if packing == ".bz2" else file


def blocks(file: IO[bytes] | gzip.GzipFile | bz2.BZ2File, skipped: Counter[str]) -> Iterator[bytes]:
    """Yield a file in blocks, up to the point where it is truncated or damaged."""
    size = UNPACKED_BYTES if isinstance(file, (bz2.BZ2File, gzip.GzipFile)) else READ_BYTES
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


def split_at(parts: Iterator[bytes], mark: bytes) -> Iterator[bytes]:
    """Yield the same bytes, cut after marks; without one, after a line or anywhere."""
    buffer = b""
    for part in parts:
        buffer += part.replace(b"\r\n", b"\n")
        position = buffer.rfind(mark)
        if position < 0 and len(buffer) >= MAX_DOCUMENT_BYTES:
            position = buffer.rfind(b"\n")
            position = position if position >= 0 else len(buffer)
        if position >= 0:
            yield buffer[: position + len(mark)]
            buffer = buffer[position + len(mark) :]
    if buffer:
        yield buffer


def dataset_rows(name: str, field: str, split: str) -> Iterator[Block]:
    """Stream the texts of a Hugging Face dataset; nothing is stored on disk."""
    try:
        import datasets
    except ImportError as error:
        raise JobError(
            f"{DATASET}{name} needs the package datasets: pip install datasets"
        ) from error
    path, configuration = name, None
    if not name.startswith((".", "/")):  # a local folder has no configurations
        path = "/".join(name.split("/")[:2])
        configuration = "/".join(name.split("/")[2:]) or None
    offset = 0
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
            offset += len(texts[-1].encode("utf-8", "replace"))
            if len(texts) == ROWS_PER_BLOCK:
                yield Block("rows", texts, offset)
                texts = []
    except JobError:
        raise
    except Exception as error:  # the package has no base class for its errors
        message = str(error).strip().splitlines() or [type(error).__name__]
        raise JobError(f"cannot read {DATASET}{name}: {message[0]}") from error
    if texts:
        yield Block("rows", texts, offset)
