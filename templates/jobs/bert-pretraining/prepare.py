"""Prepare the data for training, in four stages that can be run separately.

    python prepare.py fetch --language ko    # Wikipedia's dump into DATA/dump
    python prepare.py extract                # its sentences into DATA/text
    python prepare.py tokenizer              # a WordPiece vocabulary into DATA/tokenizer
    python prepare.py records                # masked sequences into DATA/records

DATA is the folder of --data and may be in a bucket. `extract` also takes other sources: files or
folders of text, JSON lines or dumps, and Hugging Face datasets. A stage whose result exists does
nothing; an interrupted stage is completed when it is run again.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import files
from corpus import extract, fetch, sources
from corpus.download import Client
from corpus.progress import Progress, duration, megabytes
from corpus.text import fingerprint
from corpus.workers import processor_count
from errors import JobError
from options import (
    HERE,
    add_records_options,
    add_tokenizer_options,
    check_records_options,
    check_tokenizer_options,
    positive,
    set_records_defaults,
)

__all__ = ["main", "parse"]

AGENT = "tpuctl-bert-pretraining/1.0"


def log(text: str) -> None:
    print(text, flush=True)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the options; argparse exits with code 2 on invalid usage."""
    parser = argparse.ArgumentParser(
        prog="prepare.py",
        description="Prepare the data for training: fetch, extract, tokenizer, records.",
    )
    stages = parser.add_subparsers(dest="stage", metavar="STAGE", required=True)

    def stage(name: str, run: Callable[[argparse.Namespace], None], help_text: str) -> Any:
        subparser = stages.add_parser(
            name,
            help=help_text,
            description=f"{help_text[0].upper()}{help_text[1:]}.",
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        subparser.set_defaults(run=run)
        subparser.add_argument(
            "--data",
            default=os.environ.get("TPUCTL_OUTPUT") or "output",
            help="folder of all stages, may be gs://; defaults to TPUCTL_OUTPUT if set",
        )
        return subparser

    subparser = stage("fetch", fetch_stage, "download a Wikipedia dump to DATA/dump")
    subparser.add_argument("--language", type=language, default="ko", help="as in ko.wikipedia.org")
    subparser.add_argument("--date", type=date, default="latest", help="YYYYMMDD, or latest")
    subparser.add_argument("--mirror", type=mirror, default=fetch.MIRROR, help="http(s) address")
    subparser.add_argument("--contact", default="", help="your email address, sent to the server")

    subparser = stage("extract", extract_stage, "extract sentences from any source to DATA/text")
    subparser.add_argument(
        "sources",
        nargs="*",
        metavar="SOURCE",
        default=argparse.SUPPRESS,  # so that help shows no default
        help="file or folder of .xml (a dump), .txt or .jsonl, optionally .gz or .bz2, may be "
        "gs://; or hf:owner/name[/configuration] (default: DATA/dump, else data/, else sample/)",
    )
    subparser.add_argument(
        "--field", default="text", help="column of JSON lines or dataset with the text"
    )
    subparser.add_argument("--split", default="train", help="split of a dataset")
    subparser.add_argument(
        "--shard-megabytes", type=positive, default=64, help="maximum size of a text file"
    )
    subparser.add_argument("--processes", type=positive, default=processor_count())

    subparser = stage("tokenizer", tokenizer_stage, "train a vocabulary on DATA/text")
    add_tokenizer_options(subparser)

    subparser = stage("records", records_stage, "write DATA/text as sequences for training")
    add_records_options(subparser)

    options = parser.parse_args(arguments)
    if options.stage == "records":
        set_records_defaults(options)
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run a stage; return the exit code."""
    options = parse(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow is used to access buckets
    try:
        options.run(options)
    except JobError as error:
        sys.stdout.flush()
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        print("\nstopped; run the same command again to resume", file=sys.stderr, flush=True)
        return 130
    return 0


def fetch_stage(options: argparse.Namespace) -> None:
    contact = f" ({options.contact})" if options.contact else ""
    client = Client(f"{AGENT}{contact} Python-urllib", log)
    dump = fetch.choose(options.language, options.date, options.mirror, client)
    sizes = [file.size for file in dump.files.values()]
    total = f", {megabytes(sum(size or 0 for size in sizes))}" if all(sizes) else ""
    count = f"{len(sizes)} file{'s' * (len(sizes) > 1)}"
    log(f"fetch: {dump.wiki} of {dump.date}, {count}{total}, from {options.mirror}")
    folder = files.join(options.data, "dump")
    manifest = fetch.fetch(dump, folder, client)
    size = sum(file["bytes"] for file in manifest["files"])
    log(f"dump: {dump.wiki} of {dump.date}, {megabytes(size)} in {folder} ({manifest['license']})")


def extract_stage(options: argparse.Namespace) -> None:
    began = time.monotonic()
    folder = files.join(options.data, "text")
    arguments = getattr(options, "sources", None) or default_sources(options.data)
    text_sources = sources.find(arguments)
    check_sources(text_sources, folder)
    log(
        f"extract: {', '.join(arguments)} "
        f"({len(text_sources)} source{'s' * (len(text_sources) > 1)})"
    )
    plan = extract.ExtractPlan(options.field, options.split, options.shard_megabytes)
    key = extract.key_of(text_sources, plan)
    manifest = extract.load(folder, key)
    speed = "kept"
    if manifest is None:
        total = sources.size(text_sources)
        progress = Progress("extract", total)

        def on_progress(done: int, documents: int) -> None:
            progress.show(done, f"; {documents:,} documents")

        try:
            manifest = extract.extract(
                text_sources, plan, folder, key, options.processes, on_progress
            )
        finally:
            progress.end()
        read = sum(source["bytes"] for source in manifest["sources"])
        seconds = time.monotonic() - began
        speed = f"written in {duration(seconds)}, {read / 1e6 / max(seconds, 1e-9):,.1f} MB/s read"
    counts = manifest["counts"]
    size = sum(file["bytes"] for file in manifest["files"])
    log(
        f"text: {counts['documents']:,} documents, {counts['sentences']:,} sentences, "
        f"{megabytes(size)} in {folder}, {speed}"
    )
    if manifest["skipped"]:
        skipped = (f"{count:,} × {reason}" for reason, count in manifest["skipped"].items())
        log(f"skipped: {', '.join(skipped)}")


def default_sources(data: str) -> list[str]:
    """Return the dump's files, or else the text next to this program."""
    folder = files.join(data, "dump")
    listed = files.read_json(files.join(folder, "manifest.json")).get("files", [])
    if listed:
        return [files.join(folder, file["name"]) for file in listed]
    if files.names(folder):
        return [folder]
    data_folder = HERE / "data"
    return [str(data_folder if any(data_folder.glob("*.txt")) else HERE / "sample")]


def check_sources(text_sources: list[sources.Source], folder: str) -> None:
    for source in text_sources:
        if source.path.startswith(f"{folder}/"):
            raise JobError(f"{source.path} is in the output folder of this stage: move it", 2)


def tokenizer_stage(options: argparse.Namespace) -> None:
    check_tokenizer_options(options)
    paths, text = text_of(options.data)
    import stages  # needs `tokenizers`, which fetch and extract do not

    stages.tokenizer_stage(options, paths, text, log)


def records_stage(options: argparse.Namespace) -> None:
    check_records_options(options)
    paths, text = text_of(options.data)
    import stages
    from corpus import wordpiece

    folder = files.join(options.data, "tokenizer")
    key = files.read_json(files.join(folder, "manifest.json")).get("fingerprint", "")
    tokenizer = wordpiece.load(folder, key) if key else None
    if tokenizer is None:
        raise JobError(
            f"no tokenizer in {folder}; create it first: "
            f"python prepare.py tokenizer --data {options.data}",
            2,
        )
    stages.records_stage(options, paths, text, tokenizer, log)


def text_of(data: str) -> tuple[list[str], str]:
    """Return the text's files and a hash of their content. Raises JobError if there is no text."""
    folder = files.join(data, "text")
    manifest = extract.load(folder)
    if manifest is None:
        state = " complete" if files.text_files(folder) else ""
        raise JobError(
            f"no{state} text in {folder}; create it first: python prepare.py extract --data {data}",
            2,
        )
    paths = [files.join(folder, file["name"]) for file in manifest["files"]]
    return paths, fingerprint([file["sha256"] for file in manifest["files"]])


def language(text: str) -> str:
    if not re.fullmatch(r"[a-z]{2,}(-[a-z]+)*", text):
        raise argparse.ArgumentTypeError(f"invalid language code: {text}")
    return text


def date(text: str) -> str:
    if text != "latest" and not re.fullmatch(r"20\d{6}", text):
        raise argparse.ArgumentTypeError(f"not YYYYMMDD or latest: {text}")
    return text


def mirror(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s]+", text):
        raise argparse.ArgumentTypeError(f"not an http(s) address: {text}")
    return text.rstrip("/")


if __name__ == "__main__":
    sys.exit(main())
