"""The extract stage: writes sources of any kind as `text/text-00000.txt` and so on.

Each file is UTF-8 in NFC with one sentence per line and an empty line after each document.
`manifest.json` is written last and lists the sources, the files and what was skipped.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import IO, Any

import files
from corpus import dump, sources
from corpus.documents import Extracted, extractor, whole_pages
from corpus.sources import Source
from corpus.text import fingerprint
from corpus.workers import Workers
from errors import JobError

__all__ = ["ExtractPlan", "extract", "key_of", "load"]

VERSION = 1  # of the extraction rules; part of the fingerprint
SHARD = re.compile(r"text-\d{5}\.txt")
MAX_PAGE_BYTES = 64 << 20  # of XML; anything longer is not a page

# on_progress(bytes of all sources read so far, documents so far)
OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class ExtractPlan:
    """What determines the text, besides the sources: the column of datasets and JSON lines, the
    split of datasets, and the maximum size of a file in decimal megabytes."""

    column: str = "text"
    split: str = "train"
    shard_megabytes: int = 64


def key_of(text_sources: list[Source], plan: ExtractPlan) -> str:
    """Return the fingerprint of the text extracted from these sources."""
    return fingerprint(
        "text", VERSION, vars(plan), [sources.identity(source) for source in text_sources]
    )


def load(folder: str, key: str | None = None) -> dict[str, Any] | None:
    """Return the manifest of a complete text, or None; `key` must match if it is given."""
    manifest = files.read_json(files.join(folder, "manifest.json"))
    is_finished = bool(manifest.get("files"))
    return manifest if is_finished and key in (None, manifest.get("fingerprint")) else None


def extract(
    text_sources: list[Source],
    plan: ExtractPlan,
    folder: str,
    key: str,
    processes: int,
    on_progress: OnProgress,
) -> dict[str, Any]:
    """Write the text of the sources; return the manifest.

    The files depend on the sources and the plan alone. Files of an earlier run are removed before
    the first document is written, the manifest first. Raises JobError if there is no text.
    """
    shards = Shards(folder, plan.shard_megabytes * 1_000_000)
    parts: list[dict[str, Any]] = []
    read = 0
    with Workers(processes, extractor, plan.column) as workers, closing(shards):
        for source in text_sources:
            total = Extracted()
            blocks = sources.read(source, plan.column, plan.split, total.skipped)
            for piece in join_pages(workers.map(blocks)):
                for document in piece.documents:
                    shards.write(document)
                total.counts += piece.counts
                total.skipped += piece.skipped
                total.offset = piece.offset
                on_progress(read + total.offset, shards.documents)
            read += total.offset
            parts.append(
                {
                    "path": source.path,
                    "kind": source.kind,
                    "bytes": total.offset,
                    **total.counts,
                    "skipped": dict(sorted(total.skipped.items())),
                }
            )
    counts = {
        name: sum(part.get(name, 0) for part in parts)
        for name in ("pages", "documents", "sentences")
    }
    skipped = sum((Counter(part["skipped"]) for part in parts), Counter())
    if not counts["documents"]:
        reasons = ", ".join(f"{count} × {reason}" for reason, count in sorted(skipped.items()))
        raise JobError(
            f"no text in {', '.join(source.path for source in text_sources)}: {reasons or 'empty'}",
            2,
        )
    manifest = {
        "fingerprint": key,
        "format": "UTF-8, NFC, one sentence per line, an empty line after each document",
        "sources": parts,
        "counts": counts,
        "skipped": dict(sorted(skipped.items())),
        "files": shards.files,
    }
    files.write_json(files.join(folder, "manifest.json"), manifest)
    return manifest


def join_pages(pieces: Iterator[Extracted]) -> Iterator[Extracted]:
    """Join pages that were split at the border of two blocks."""
    rest = b""
    last = None
    for piece in pieces:
        if last is not None:
            yield last
        border = Extracted()
        whole_pages(rest + piece.head, piece.names, border)
        if piece.has_page:
            border.skipped["broken page"] += dump.OPEN in border.tail
            rest = piece.tail
        else:
            rest = border.tail or border.head
            if len(rest) > MAX_PAGE_BYTES:
                border.skipped["broken page"] += 1
                rest = b""
        piece.documents[:0] = border.documents
        piece.counts += border.counts
        piece.skipped += border.skipped
        last = piece
    if last is not None:
        last.skipped["broken page"] += dump.OPEN in rest
        yield last


class Shards:
    """Files that documents are written to in order, at most `limit` bytes each unless a single
    document is larger."""

    def __init__(self, folder: str, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self.files: list[dict[str, Any]] = []
        self.documents = 0
        self.file: IO[bytes] | None = None

    def write(self, document: bytes) -> None:
        if self.file is not None and self.files[-1]["bytes"] + len(document) > self.limit:
            self.close()
        if not self.files:
            clear(self.folder)
        name = f"text-{len(self.files) - (self.file is not None):05d}.txt"
        with files.write_errors(files.join(self.folder, name)):
            if self.file is None:
                self.file = files.open_file(files.join(self.folder, name), "wb")
                self.digest = hashlib.sha256()
                self.files.append({"name": name, "bytes": 0, "documents": 0})
            self.file.write(document)
        self.digest.update(document)
        self.files[-1]["bytes"] += len(document)
        self.files[-1]["documents"] += 1
        self.documents += 1

    def close(self) -> None:
        if self.file is not None:
            with files.write_errors(files.join(self.folder, self.files[-1]["name"])):
                self.file.close()
            self.files[-1]["sha256"] = self.digest.hexdigest()
            self.file = None


def clear(folder: str) -> None:
    files.remove(files.join(folder, "manifest.json"))
    for name in files.names(folder):
        if SHARD.fullmatch(name):
            files.remove(files.join(folder, name))
