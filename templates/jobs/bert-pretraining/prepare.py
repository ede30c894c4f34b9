"""Prepare the data for training, in four stages that can each be run on its own.

    python prepare.py fetch --language ko    # Wikipedia's dump into DATA/dump
    python prepare.py extract                # its sentences into DATA/text
    python prepare.py tokenizer              # a WordPiece vocabulary into DATA/tokenizer
    python prepare.py records                # masked sequences into DATA/records

DATA is the folder of --data and may be in a bucket. `extract` also takes other sources: files or
folders of text, JSON lines or dumps, and Hugging Face datasets. A stage whose result is there
already does nothing; one that was cut short is done when it is run again.
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
from corpus.workers import available
from errors import JobError
from options import (
    HERE,
    add_records_options,
    add_tokenizer_options,
    check_records_options,
    check_tokenizer_options,
    positive,
    settle_records_options,
)

__all__ = ["main", "parse"]

AGENT = "tpuctl-bert-pretraining/1.0"


def say(text: str) -> None:
    print(text, flush=True)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options; wrong usage ends the process with code 2, as argparse does."""
    parser = argparse.ArgumentParser(
        prog="prepare.py",
        description="Prepare the data for training: fetch, extract, tokenizer, records.",
    )
    stages = parser.add_subparsers(dest="stage", metavar="STAGE", required=True)

    def stage(name: str, run: Callable[[argparse.Namespace], None], told: str) -> Any:
        one = stages.add_parser(
            name,
            help=told,
            description=f"{told[0].upper()}{told[1:]}.",
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        one.set_defaults(run=run)
        one.add_argument(
            "--data",
            default=os.environ.get("TPUCTL_OUTPUT") or "output",
            help="folder for all stages, may be gs://; from TPUCTL_OUTPUT when that is set",
        )
        return one

    one = stage("fetch", fetch_stage, "download the dump of a Wikipedia into DATA/dump")
    one.add_argument("--language", type=language, default="ko", help="as in ko.wikipedia.org")
    one.add_argument("--date", type=date, default="latest", help="YYYYMMDD, or latest")
    one.add_argument("--mirror", type=mirror, default=fetch.MIRROR, help="http(s) address")
    one.add_argument("--contact", default="", help="your mail address, told to the server")

    one = stage("extract", extract_stage, "make sentences of text from any source in DATA/text")
    one.add_argument(
        "sources",
        nargs="*",
        metavar="SOURCE",
        default=argparse.SUPPRESS,  # so that help shows no default
        help="file or folder of .xml (a dump), .txt or .jsonl, packed as .gz or .bz2 or not, may "
        "be gs://; or hf:owner/name[/configuration]. Without any: DATA/dump, else data/, else "
        "sample/",
    )
    one.add_argument("--field", default="text", help="of JSON lines and datasets: where text is")
    one.add_argument("--split", default="train", help="of datasets")
    one.add_argument("--shard-megabytes", type=positive, default=64, help="size of a text file")
    one.add_argument("--processes", type=positive, default=available())

    one = stage("tokenizer", tokenizer_stage, "train a vocabulary on DATA/text")
    add_tokenizer_options(one)

    one = stage("records", records_stage, "write DATA/text as sequences for training")
    add_records_options(one)

    options = parser.parse_args(arguments)
    if options.stage == "records":
        settle_records_options(options)
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run a stage; return the exit code."""
    options = parse(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # for the TensorFlow that reaches buckets
    try:
        options.run(options)
    except JobError as error:
        sys.stdout.flush()
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        print("\nstopped; the same command does the rest", file=sys.stderr, flush=True)
        return 130
    return 0


def fetch_stage(options: argparse.Namespace) -> None:
    contact = f" ({options.contact})" if options.contact else ""
    client = Client(f"{AGENT}{contact} Python-urllib", say)
    dump = fetch.choose(options.language, options.date, options.mirror, client)
    sizes = [file.size for file in dump.files.values()]
    total = f", {megabytes(sum(size or 0 for size in sizes))}" if all(sizes) else ""
    count = f"{len(sizes)} file{'s' * (len(sizes) > 1)}"
    say(f"fetch: {dump.wiki} of {dump.date}, {count}{total}, from {options.mirror}")
    folder = files.join(options.data, "dump")
    manifest = fetch.fetch(dump, folder, client)
    size = sum(file["bytes"] for file in manifest["files"])
    say(f"dump: {dump.wiki} of {dump.date}, {megabytes(size)} in {folder} ({manifest['license']})")


def extract_stage(options: argparse.Namespace) -> None:
    began = time.monotonic()
    folder = files.join(options.data, "text")
    named = getattr(options, "sources", None) or default_sources(options.data)
    found = sources.find(named)
    check_apart(found, folder)
    say(f"extract: {', '.join(named)} ({len(found)} source{'s' * (len(found) > 1)})")
    plan = extract.ExtractPlan(options.field, options.split, options.shard_megabytes)
    key = extract.key_of(found, plan)
    manifest = extract.load(folder, key)
    speed = "kept"
    if manifest is None:
        total = sources.size(found)
        progress = Progress("extract", total)

        def told(done: int, documents: int) -> None:
            progress.show(done, f"; {documents:,} documents")

        try:
            manifest = extract.extract(found, plan, folder, key, options.processes, told)
        finally:
            progress.end()
        read = sum(source["bytes"] for source in manifest["sources"])
        seconds = time.monotonic() - began
        speed = f"written in {duration(seconds)}, {read / 1e6 / max(seconds, 1e-9):,.1f} MB/s read"
    counts = manifest["counts"]
    size = sum(file["bytes"] for file in manifest["files"])
    say(
        f"text: {counts['documents']:,} documents, {counts['sentences']:,} sentences, "
        f"{megabytes(size)} in {folder}, {speed}"
    )
    if manifest["skipped"]:
        skipped = (f"{count:,} × {why}" for why, count in manifest["skipped"].items())
        say(f"skipped: {', '.join(skipped)}")


def default_sources(data: str) -> list[str]:
    """Return the dump's files, else the text beside this program."""
    folder = files.join(data, "dump")
    listed = files.read_json(files.join(folder, "manifest.json")).get("files", [])
    if listed:
        return [files.join(folder, file["name"]) for file in listed]
    if files.names(folder):
        return [folder]
    given = HERE / "data"
    return [str(given if any(given.glob("*.txt")) else HERE / "sample")]


def check_apart(found: list[sources.Source], folder: str) -> None:
    for source in found:
        if source.path.startswith(f"{folder}/"):
            raise JobError(f"{source.path} lies where the text is to be written: move it", 2)


def tokenizer_stage(options: argparse.Namespace) -> None:
    check_tokenizer_options(options)
    paths, text = text_of(options.data)
    import stages  # needs the tokenizers, which fetching and extracting do without

    stages.tokenizer_stage(options, paths, text, say)


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
            f"no tokenizer in {folder}; make it first: "
            f"python prepare.py tokenizer --data {options.data}",
            2,
        )
    stages.records_stage(options, paths, text, tokenizer, say)


def text_of(data: str) -> tuple[list[str], str]:
    """Return the text's files and a hash of their content. Raises JobError when there is none."""
    folder = files.join(data, "text")
    manifest = extract.load(folder)
    if manifest is None:
        begun = " whole" if files.text_files(folder) else ""
        raise JobError(
            f"no{begun} text in {folder}; make it first: python prepare.py extract --data {data}", 2
        )
    paths = [files.join(folder, file["name"]) for file in manifest["files"]]
    return paths, fingerprint([file["sha256"] for file in manifest["files"]])


def language(text: str) -> str:
    if not re.fullmatch(r"[a-z]{2,}(-[a-z]+)*", text):
        raise argparse.ArgumentTypeError(f"no language code: {text}")
    return text


def date(text: str) -> str:
    if text != "latest" and not re.fullmatch(r"20\d{6}", text):
        raise argparse.ArgumentTypeError(f"neither YYYYMMDD nor latest: {text}")
    return text


def mirror(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s]+", text):
        raise argparse.ArgumentTypeError(f"no http(s) address: {text}")
    return text.rstrip("/")


if __name__ == "__main__":
    sys.exit(main())
