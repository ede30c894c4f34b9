"""Write the records with Apache Beam: the last stage of `prepare.py`, on many machines.

    python prepare_beam.py --data gs://BUCKET/data --pairs nsp --duplication 10 \
        --runner DataflowRunner --project PROJECT --region us-central1 \
        --temp_location gs://BUCKET/beam --setup_file ./setup.py

Options that this program does not define are passed to Beam: the runner and its options. The
default runner is local. Requires `apache-beam`, `numpy` and `tokenizers`, but not TensorFlow. Run
`prepare.py extract` and `prepare.py tokenizer` first: DATA must contain their output.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions
from tokenizers import Tokenizer

from corpus.beam import add_records, read_file
from corpus.pieces import Text
from corpus.records import is_record_file, key_of
from corpus.text import fingerprint
from errors import JobError
from options import (
    HERE,
    add_records_options,
    check_records_options,
    records_plan,
    set_records_defaults,
)

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run the pipeline and wait for its end; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="prepare_beam.py",
        description="Write the records with Apache Beam. Other options are passed to Beam.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--data", required=True, help="folder of all stages, may be gs://")
    add_records_options(parser)
    options, others = parser.parse_known_args(arguments)
    set_records_defaults(options)
    try:
        check_records_options(options)
        run(options, others)
    except JobError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def run(options: argparse.Namespace, others: list[str]) -> None:
    data = options.data.rstrip("/")
    listed = json.loads(read(f"{data}/text/manifest.json", f"extract --data {data}"))["files"]
    tokenizer_json = read(f"{data}/tokenizer/tokenizer.json", f"tokenizer --data {data}")
    text = Text(tuple((f"{data}/text/{file['name']}", file["bytes"]) for file in listed))
    plan = records_plan(options, text.size)
    text_hash = fingerprint([file["sha256"] for file in listed])
    key = key_of(text_hash, Tokenizer.from_str(tokenizer_json), plan)
    folder = f"{data}/records"
    # The manifest is deleted first: records without a manifest are incomplete.
    if FileSystems.exists(f"{folder}/manifest.json"):
        FileSystems.delete([f"{folder}/manifest.json"])
    if not FileSystems.exists(folder):
        FileSystems.mkdirs(folder)
    for metadata in FileSystems.match([f"{folder}/*"])[0].metadata_list:
        if is_record_file(metadata.path.rpartition("/")[2]):
            FileSystems.delete([metadata.path])
    # For the processes that a runner starts on this computer.
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    with beam.Pipeline(options=PipelineOptions(others)) as pipeline:
        add_records(pipeline, text, tokenizer_json, plan, folder, key)
    manifest = json.loads(read_file(f"{folder}/manifest.json"))
    counts = manifest["counts"]
    print(f"records: {counts['sequences']:,} sequences of {plan.sequence_length} in {folder}")


def read(path: str, stage: str) -> str:
    if not FileSystems.exists(path):
        raise JobError(f"{path} not found; create it first: python prepare.py {stage}", 2)
    return read_file(path)


if __name__ == "__main__":
    sys.exit(main())
