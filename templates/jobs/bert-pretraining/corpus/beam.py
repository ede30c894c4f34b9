"""The records stage as an Apache Beam pipeline, for text too large for one machine.

It builds each piece's records with the same function as a single machine
(`corpus.record_builder`), so the files are identical, byte for byte, wherever the pipeline runs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from tokenizers import Tokenizer

from corpus.pieces import Text
from corpus.plan import RecordsPlan
from corpus.record_builder import PieceRecords, make_builder
from corpus.records import file_name, kinds_of, manifest_of

__all__ = ["add_records", "read_file", "write_file"]

Content = tuple[int, bytes, int]  # the piece's number, what it adds to a file, and its sequences


def add_records(
    pipeline: beam.Pipeline,
    text: Text,
    tokenizer_json: str,
    plan: RecordsPlan,
    folder: str,
    fingerprint: str,
) -> Any:
    """Add the steps that write the shards and, last, the manifest to a folder."""
    piece_records = (
        pipeline
        | "Pieces" >> beam.Create(range(text.pieces))
        | "ShareOut" >> beam.Reshuffle()
        | "Make" >> beam.ParDo(MakePiece(text, tokenizer_json, plan))
    )
    written = (
        piece_records
        | "Parts" >> beam.FlatMap(parts_of)
        | "Shards" >> beam.GroupByKey()
        | "Write" >> beam.Map(write_shard, folder=folder, shards=plan.shards)
    )
    counted = (
        piece_records | "Counts" >> beam.Map(counts_of) | "Sum" >> beam.CombineGlobally(sum_counts)
    )
    return (
        pipeline
        | "Manifest" >> beam.Create([folder])
        | "WriteManifest"
        >> beam.Map(
            write_manifest,
            plan=plan,
            tokenizer_json=tokenizer_json,
            fingerprint=fingerprint,
            written=beam.pvalue.AsList(written),
            counted=beam.pvalue.AsSingleton(counted),
        )
    )


class MakePiece(beam.DoFn):
    """Reads a piece of the text and builds its records."""

    def __init__(self, text: Text, tokenizer_json: str, plan: RecordsPlan) -> None:
        self.text, self.tokenizer_json, self.plan = text, tokenizer_json, plan

    def setup(self) -> None:
        """Create the tokenizer once per worker."""
        self.make = make_builder(self.plan, self.tokenizer_json, self.text.pieces)

    def process(self, number: int) -> Iterator[tuple[int, PieceRecords]]:
        """Yield the piece's number and its records."""
        yield number, self.make((number, self.text.piece(number, read_range)))


def read_range(path: str, start: int, size: int) -> bytes:
    with FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        file.seek(start)
        return bytes(file.read(size))


def read_file(path: str) -> str:
    """Return a file's text."""
    with FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        return file.read().decode("utf-8")


def write_file(path: str, content: bytes) -> None:
    """Write a file under a temporary name, then rename it."""
    part = f"{path}.part"
    with FileSystems.create(part, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        file.write(content)
    if FileSystems.exists(path):
        FileSystems.delete([path])
    FileSystems.rename([part], [path])


def parts_of(item: tuple[int, PieceRecords]) -> Iterator[tuple[tuple[str, int], Content]]:
    number, records = item
    for part in records.parts:
        for kind, content, sequences in kinds_of(part):
            yield (kind, part.shard), (number, content, sequences)


def write_shard(
    item: tuple[tuple[str, int], Iterable[Content]], folder: str, shards: int
) -> tuple[str, dict[str, Any]]:
    """Write a shard's file from its pieces, in order; return its manifest entry."""
    (kind, shard), contents = item
    name = file_name(kind, shard, shards)
    ordered = sorted(contents)
    content = b"".join(part for _, part, _ in ordered)
    write_file(f"{folder}/{name}", content)
    sequences = sum(sequences for _, _, sequences in ordered)
    return kind, {"name": name, "sequences": sequences, "bytes": len(content)}


def counts_of(item: tuple[int, PieceRecords]) -> tuple[Counter[str], Counter[str]]:
    return Counter(item[1].counts), Counter(item[1].skipped)


def sum_counts(
    counts_of_pieces: Iterable[tuple[Counter[str], Counter[str]]],
) -> tuple[Counter[str], Counter[str]]:
    counts, skipped = Counter[str](), Counter[str]()
    for more_counts, more_skipped in counts_of_pieces:
        counts.update(more_counts)
        skipped.update(more_skipped)
    return counts, skipped


def write_manifest(
    folder: str,
    plan: RecordsPlan,
    tokenizer_json: str,
    fingerprint: str,
    written: list[tuple[str, dict[str, Any]]],
    counted: tuple[Counter[str], Counter[str]],
) -> dict[str, Any]:
    counts, skipped = counted
    state: dict[str, Any] = {
        "counts": dict(counts),
        "skipped": {name: count for name, count in skipped.items() if count},
    }
    for kind in ("training", "held_out"):
        entries = (entry for entry_kind, entry in written if entry_kind == kind)
        state[kind] = sorted(entries, key=lambda about: about["name"])
    manifest = manifest_of(plan, Tokenizer.from_str(tokenizer_json), fingerprint, state)
    text = json.dumps(manifest, indent=2, ensure_ascii=False, sort_keys=True)
    write_file(f"{folder}/manifest.json", f"{text}\n".encode())
    return manifest
