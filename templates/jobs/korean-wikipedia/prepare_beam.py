"""Writes the same records as `prepare.py records` with Apache Beam, for more than one machine.

It has the same options, and Beam's. Each text file is one element, with its own seed.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.io import fileio
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

import prepare
from files import JobError, report
from records import Plan, RecordBuilder, manifest_of


class Build(beam.DoFn):
    """Builds the records of a text file."""

    def __init__(self, tokenizer_json: str, plan: Plan) -> None:
        self.arguments = tokenizer_json, plan

    def setup(self) -> None:
        """Create the tokenizer, once per worker."""
        self.builder = RecordBuilder(*self.arguments)

    def process(self, file: fileio.ReadableFile) -> Iterator[Any]:
        """Yield the records for training, and others with tags."""
        number = int(file.metadata.path[-len("00000.txt") : -len(".txt")])
        lines = file.read().decode("utf-8", "replace").split("\n")
        training, held_out, counts = self.builder.build(lines, number)
        yield from training
        yield from (beam.pvalue.TaggedOutput("held_out", record) for record in held_out)
        yield from (beam.pvalue.TaggedOutput("counts", item) for item in counts.items())


def read(path: str, stage: str) -> str:
    """Return a file's text. Raises JobError if the stage that writes it is not complete."""
    if not FileSystems.exists(path):
        raise JobError(f"{path} not found; create it first: python prepare.py {stage}", 2)
    with FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        return str(file.read(), "utf-8")


def run(options: argparse.Namespace, others: list[str]) -> int:
    """Run the pipeline, wait for its end, and write the manifest."""
    data, folder = options.data, f"{options.data}/records"
    text = json.loads(read(f"{data}/text/manifest.json", "text"))
    tokenizer_json = read(f"{data}/tokenizer/tokenizer.json", "vocabulary")
    tokenizer, plan, key = prepare.records_plan(options, text, tokenizer_json)
    old = [file.path for file in FileSystems.match([f"{folder}/*"])[0].metadata_list]
    FileSystems.delete(sorted(old, key=lambda path: not path.endswith("manifest.json")))
    parts = beam.ParDo(Build(tokenizer_json, plan)).with_outputs("held_out", "counts", main="part")
    with beam.Pipeline(options=PipelineOptions(others)) as pipeline:
        texts = pipeline | beam.Create([f"{data}/text/{name}" for name in text["files"]])
        built = texts | fileio.MatchAll() | beam.Reshuffle() | fileio.ReadMatches() | parts
        for kind in ("part", "held_out"):
            path = f"{folder}/{kind.replace('_', '-')}"
            write = beam.io.WriteToTFRecord(path, file_name_suffix=".tfrecord.gz")
            _ = built[kind] | kind >> write
        counted = built["counts"] | beam.CombinePerKey(sum) | beam.combiners.ToDict()
        write = beam.io.WriteToText(f"{folder}/counts.json", shard_name_template="")
        _ = counted | beam.Map(json.dumps) | write
    counts = json.loads(read(f"{folder}/counts.json", "records"))
    written = FileSystems.match([f"{folder}/*.tfrecord.gz"])[0].metadata_list
    sizes = {file.path.rpartition("/")[2]: file.size_in_bytes for file in written}
    manifest = manifest_of(tokenizer, plan, key, counts, sizes)
    with FileSystems.create(f"{folder}/manifest.json") as file:
        file.write(json.dumps(manifest, indent=2, sort_keys=True).encode())
    amount = f"{counts['sequences']:,} sequences of {plan.sequence_length} tokens"
    print(f"records: {amount} in {folder}")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="prepare_beam.py", allow_abbrev=False)
    prepare.add_options(parser, "records")
    options, others = parser.parse_known_args()
    sys.exit(report(lambda: run(options, others)))
