"""The records stage: writes a text of any size as sharded, compressed files with a manifest.

Processes build the records of the text's pieces, and the results are written in order, one shard
after the other. So memory does not grow with the text, the files do not depend on the number of
processes, and an interrupted stage resumes after the last complete shard.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import IO, Any

from tokenizers import Tokenizer

import files
from corpus import wordpiece
from corpus.pieces import PIECE_BYTES, Text, shards_of
from corpus.plan import RecordsPlan
from corpus.progress import Progress
from corpus.ranges import RangeReader
from corpus.record_builder import Part, PieceRecords, make_builder
from corpus.text import fingerprint as text_fingerprint
from corpus.workers import Workers, processor_count

__all__ = [
    "COMPRESSION",
    "file_name",
    "is_record_file",
    "key_of",
    "kinds_of",
    "load",
    "manifest_of",
    "write",
]

COMPRESSION = "GZIP"
KINDS = {"training": "part", "held_out": "held-out"}
RECORD_FILE = re.compile(rf"({'|'.join(KINDS.values())})-\d+-of-\d+\.tfrecord\.gz")
UNFINISHED = "unfinished.json"


def write(
    paths: Sequence[str],
    tokenizer: Tokenizer,
    plan: RecordsPlan,
    folder: str,
    fingerprint: str,
    processes: int | None = None,
    piece_bytes: int = PIECE_BYTES,
) -> dict[str, Any]:
    """Write the shards and, last, `manifest.json`; return the manifest.

    The files depend on the text, the tokenizer and the plan alone, which the fingerprint
    identifies: complete shards of an earlier run with the same fingerprint are kept.
    """
    text = Text(tuple((path, files.size_and_mtime(path)[0]) for path in paths), piece_bytes)
    writer = RecordWriter(folder, fingerprint, plan.shards)
    first_shards = [shards_of(n, text.pieces, plan.shards)[0] for n in range(text.pieces)]
    todo = [n for n, shard in enumerate(first_shards) if shard >= writer.done]
    read = RangeReader()
    progress = Progress("records", text.size, text.piece_bytes * (text.pieces - len(todo)))
    with ExitStack() as stack:
        stack.callback(progress.end)
        stack.enter_context(read)
        workers = stack.enter_context(
            Workers(
                min(processes or processor_count(), max(1, len(todo))),
                make_builder,
                plan,
                tokenizer.to_str(),
                text.pieces,
            )
        )
        stack.enter_context(writer)
        results = workers.map((number, text.piece(number, read)) for number in todo)
        for number, piece in zip(todo, results, strict=True):
            writer.add(piece)
            progress.show(min(text.size, text.piece_bytes * (number + 1)))
    manifest = manifest_of(plan, tokenizer, fingerprint, writer.state)
    files.write_json(files.join(folder, "manifest.json"), manifest)
    files.remove(files.join(folder, UNFINISHED))
    return manifest


def key_of(text_hash: str, tokenizer: Tokenizer, plan: RecordsPlan) -> str:
    """Return the fingerprint of everything the records depend on, and of their format."""
    return text_fingerprint(
        "records", 2, text_hash, wordpiece.vocabulary_hash(tokenizer), vars(plan)
    )


def load(folder: str, fingerprint: str) -> dict[str, Any] | None:
    """Return the manifest of the records with this fingerprint, or None."""
    manifest = files.read_json(files.join(folder, "manifest.json"))
    return manifest if manifest.get("fingerprint") == fingerprint else None


def manifest_of(
    plan: RecordsPlan, tokenizer: Tokenizer, fingerprint: str, state: dict[str, Any]
) -> dict[str, Any]:
    """Return the manifest, which readers of the records need."""
    return {
        **vars(plan),
        "fingerprint": fingerprint,
        "vocabulary_size": tokenizer.get_vocab_size(),
        "vocabulary_sha256": wordpiece.vocabulary_hash(tokenizer),
        "special_tokens": vars(wordpiece.special_tokens(tokenizer)),
        "compression": COMPRESSION,
        "counts": {**state["counts"], "skipped": state["skipped"]},
        "files": state["training"],
        "held_out": state["held_out"],
        "held_out_share": plan.held_out,
    }


def file_name(kind: str, shard: int, shards: int) -> str:
    """Return the name of a shard's "training" or "held_out" file."""
    return f"{KINDS[kind]}-{shard:05d}-of-{shards:05d}.tfrecord.gz"


def is_record_file(name: str) -> bool:
    """Whether a file name is one that this stage writes."""
    return bool(RECORD_FILE.fullmatch(name))


class RecordWriter:
    """Writes the shards, with a list of complete ones that the next run resumes from."""

    def __init__(self, folder: str, fingerprint: str, shards: int) -> None:
        self.folder, self.shards = folder, shards
        self.state: dict[str, Any] = files.read_json(files.join(folder, UNFINISHED))
        if self.state.get("fingerprint") != fingerprint:
            self.state = {"fingerprint": fingerprint, "done": 0, "training": [], "held_out": []}
            self.state |= {"counts": {}, "skipped": {}}
            self.clear()
        self.counts = Counter(self.state["counts"])
        self.skipped = Counter(self.state["skipped"])
        self.shard: int | None = None
        self.open: dict[str, IO[bytes]] = {}
        self.sequences: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    @property
    def done(self) -> int:
        """The number of the first incomplete shard."""
        return int(self.state["done"])

    def clear(self) -> None:
        """Remove the records of another text or plan, the manifest first."""
        files.remove(files.join(self.folder, "manifest.json"))
        for name in files.names(self.folder):
            if is_record_file(name):
                files.remove(files.join(self.folder, name))

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None:
            self.finish(self.shards)
        for file in self.open.values():
            file.close()

    def add(self, piece: PieceRecords) -> None:
        """Append the records of the next piece."""
        if piece.parts[0].shard != self.shard:
            self.finish(piece.parts[0].shard)
        for part in piece.parts:
            if part.shard != self.shard:
                self.close()
                self.shard = part.shard
            for kind, content, sequences in kinds_of(part):
                self.append(kind, content, sequences)
        self.counts.update(piece.counts)
        self.skipped.update(piece.skipped)

    def append(self, kind: str, content: bytes, sequences: int) -> None:
        if self.shard is None:
            raise ValueError("no shard is open")
        path = files.join(self.folder, file_name(kind, self.shard, self.shards))
        with files.write_errors(path):
            if kind not in self.open:
                self.open[kind] = files.open_file(path, "wb")
            self.open[kind].write(content)
        self.sequences[kind] += sequences
        self.bytes[kind] += len(content)

    def finish(self, next_shard: int) -> None:
        """Close the shard and record that all shards before `next_shard` are complete."""
        self.close()
        if next_shard > self.done:
            self.state |= {"done": next_shard, "counts": dict(self.counts)}
            self.state["skipped"] = {name: n for name, n in self.skipped.items() if n}
            files.write_json(files.join(self.folder, UNFINISHED), self.state)

    def close(self) -> None:
        for kind in list(self.open):
            name = file_name(kind, self.shard or 0, self.shards)
            with files.write_errors(files.join(self.folder, name)):
                self.open.pop(kind).close()
            entry = {"name": name, "sequences": self.sequences[kind], "bytes": self.bytes[kind]}
            self.state[kind].append(entry)
        self.sequences.clear()
        self.bytes.clear()


def kinds_of(part: Part) -> Iterator[tuple[str, bytes, int]]:
    """Yield the kinds of files that a part adds to, each with its content and sequence count.

    A shard always has a training file, and a held-out file only if it is not empty.
    """
    yield "training", part.training, part.training_sequences
    if part.held_out:
        yield "held_out", part.held_out, part.held_out_sequences
