"""The records stage: a text of any size becomes sharded, compressed files and a manifest.

The text's pieces go to processes, and what they become is written in order, one shard after the
other. So memory does not grow with the text, the files are the same however many processes there
are, and a stage that was cut short goes on behind the last shard that was finished.
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
from corpus.making import Made, Part, make_maker
from corpus.pieces import PIECE_BYTES, Text, shards_of
from corpus.plan import RecordsPlan
from corpus.progress import Progress
from corpus.ranges import RangeReader
from corpus.text import fingerprint as text_fingerprint
from corpus.workers import Workers, available

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
OURS = re.compile(rf"({'|'.join(KINDS.values())})-\d+-of-\d+\.tfrecord\.gz")
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
    """Write the shards and, last, `manifest.json`; return what the manifest says.

    The files depend on the text, the tokenizer and the plan alone. The fingerprint stands for
    these: shards that an earlier run finished under the same one are kept.
    """
    text = Text(tuple((path, files.stamp(path)[0]) for path in paths), piece_bytes)
    written = Written(folder, fingerprint, plan.shards)
    first_shards = [shards_of(n, text.pieces, plan.shards)[0] for n in range(text.pieces)]
    todo = [n for n, shard in enumerate(first_shards) if shard >= written.done]
    read = RangeReader()
    progress = Progress("records", text.size, text.piece_bytes * (text.pieces - len(todo)))
    with ExitStack() as stack:
        stack.callback(progress.end)
        stack.enter_context(read)
        workers = stack.enter_context(
            Workers(
                min(processes or available(), max(1, len(todo))),
                make_maker,
                plan,
                tokenizer.to_str(),
                text.pieces,
            )
        )
        stack.enter_context(written)
        made = workers.map((number, text.piece(number, read)) for number in todo)
        for number, piece in zip(todo, made, strict=True):
            written.add(piece)
            progress.show(min(text.size, text.piece_bytes * (number + 1)))
    manifest = manifest_of(plan, tokenizer, fingerprint, written.state)
    files.write_json(files.join(folder, "manifest.json"), manifest)
    files.remove(files.join(folder, UNFINISHED))
    return manifest


def key_of(text_hash: str, tokenizer: Tokenizer, plan: RecordsPlan) -> str:
    """Return what stands for all that the records depend on, and the format they have."""
    return text_fingerprint(
        "records", 2, text_hash, wordpiece.vocabulary_hash(tokenizer), vars(plan)
    )


def load(folder: str, fingerprint: str) -> dict[str, Any] | None:
    """Return the manifest of the records written under this fingerprint, else None."""
    manifest = files.read_json(files.join(folder, "manifest.json"))
    return manifest if manifest.get("fingerprint") == fingerprint else None


def manifest_of(
    plan: RecordsPlan, tokenizer: Tokenizer, fingerprint: str, state: dict[str, Any]
) -> dict[str, Any]:
    """Return what a reader has to know of the records."""
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
    """Tell whether a file's name is one that this stage gives."""
    return bool(OURS.fullmatch(name))


class Written:
    """The files so far, and the note of them that the next run goes on from."""

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
        """The number of the first shard that is not finished."""
        return int(self.state["done"])

    def clear(self) -> None:
        """Remove the records of another text or plan, the manifest first."""
        files.remove(files.join(self.folder, "manifest.json"))
        for name in files.names(self.folder):
            if is_record_file(name):
                files.remove(files.join(self.folder, name))

    def __enter__(self) -> Written:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None:
            self.finish(self.shards)
        for file in self.open.values():
            file.close()

    def add(self, piece: Made) -> None:
        """Write what a piece became, behind what the pieces before it did."""
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
        with files.writing(path):
            if kind not in self.open:
                self.open[kind] = files.opened(path, "wb")
            self.open[kind].write(content)
        self.sequences[kind] += sequences
        self.bytes[kind] += len(content)

    def finish(self, next_shard: int) -> None:
        """Close the shard and note that everything before the next one is done."""
        self.close()
        if next_shard > self.done:
            self.state |= {"done": next_shard, "counts": dict(self.counts)}
            self.state["skipped"] = {name: n for name, n in self.skipped.items() if n}
            files.write_json(files.join(self.folder, UNFINISHED), self.state)

    def close(self) -> None:
        for kind in list(self.open):
            name = file_name(kind, self.shard or 0, self.shards)
            with files.writing(files.join(self.folder, name)):
                self.open.pop(kind).close()
            about = {"name": name, "sequences": self.sequences[kind], "bytes": self.bytes[kind]}
            self.state[kind].append(about)
        self.sequences.clear()
        self.bytes.clear()


def kinds_of(part: Part) -> Iterator[tuple[str, bytes, int]]:
    """Yield the kinds of files that a part adds to, each with what it adds.

    A shard always has a file for training; one that is held out only if there is something.
    """
    yield "training", part.training, part.training_sequences
    if part.held_out:
        yield "held_out", part.held_out, part.held_out_sequences
