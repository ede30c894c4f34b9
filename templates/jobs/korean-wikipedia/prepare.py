"""Prepares text for training, in three stages; a stage whose result exists does nothing."""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import chain, islice
from typing import Any

import files
import wikipedia
from files import JobError, join
from records import PAIRS, Plan, in_processes, write
from vocabulary import MAX_VOCABULARY, fingerprint, read_lines, train_vocabulary, vocabulary_hash

VERSION = 1  # of the rules that make text of a source
BATCH = 64  # documents that a process extracts at once
DEFAULT_SOURCE = "hf:wikimedia/wikipedia/20231101.ko"


def within(kind: Any, least: float, most: float, text: str) -> Any:
    """Return the number that an option's text stands for. Raises ArgumentTypeError."""
    if not least <= kind(text) <= most:
        raise argparse.ArgumentTypeError(f"must be from {least:,} to {most:,}")
    return kind(text)


def add_options(parser: argparse.ArgumentParser, stage: str) -> None:
    """Add the options of a stage; `prepare_beam.py` has those of the records, too."""
    add, number = parser.add_argument, partial(within, int, 1, 2**31 - 1)
    data, folder = os.environ.get("TPUCTL_OUTPUT") or "output", lambda text: text.rstrip("/")
    add("--data", default=data, type=folder, help="folder of all stages, may be gs://")
    if stage == "text":
        kinds = "file or folder of .xml (a dump), .txt, .jsonl; .gz or .bz2; or hf:owner/name"
        add("sources", nargs="*", metavar="SOURCE", default=[DEFAULT_SOURCE], help=kinds)
        add("--field", default="text", help="field of JSON lines or of a dataset with the text")
        add("--split", default="train", help="split of a dataset")
        add("--file-megabytes", type=number, default=16, help="size of a text file")
    elif stage == "vocabulary":
        size = partial(within, int, 100, MAX_VOCABULARY)
        add("--vocabulary-size", type=size, default=32_000, help="word pieces")
        add("--sample", type=number, default=200, help="megabytes of text to train on")
    else:
        length = partial(within, int, 16, 65_536)
        add("--sequence-length", type=length, default=128, help="tokens")
        add("--pairs", choices=PAIRS, default="nsp", help="of segments, half random or swapped")
        add("--duplication", type=number, default=1, help="copies of the text, with other pairs")
        share = partial(within, float, 0, 0.5)
        add("--held-out", type=share, default=0.01, help="share of documents for evaluation")
        add("--seed", type=int, default=1, help="of pairs, lengths and order")
    if stage != "vocabulary":
        add("--processes", type=number, default=os.cpu_count(), help="processes at once")


def text_stage(options: argparse.Namespace) -> None:
    folder = join(options.data, "text")
    sources = wikipedia.find(options.sources)
    identities = []
    for path, kind in sources:
        if path.startswith(f"{folder}/"):
            raise JobError(f"{path} is in the output folder of this stage: move it", 2)
        with files.file_errors(path):
            status = None if kind == "rows" else files.gfile().stat(path)
        identities.append([path, status and status.length, status and status.mtime_nsec])
    choices = [options.field, options.split, options.file_megabytes]
    key = fingerprint("text", VERSION, choices, identities)
    manifest, how = files.read_json(join(folder, "manifest.json")), "kept"
    if manifest.get("fingerprint") != key:
        manifest, how = {"fingerprint": key, **write_text(sources, folder, options)}, "written"
        files.write_json(join(folder, "manifest.json"), manifest)
    amount = ", ".join(f"{count:,} {name}" for name, count in manifest["counts"].items())
    print(f"text: {amount} in {folder}, {how}")
    if skipped := manifest["skipped"]:
        print(
            "skipped:",
            ", ".join(f"{count:,} × {reason}" for reason, count in sorted(skipped.items())),
        )


def write_text(sources: Any, folder: str, options: argparse.Namespace) -> dict[str, Any]:
    """Write the sentences of the sources; return the manifest. Without any, keep what exists."""
    counts, skipped, listed = Counter[str](), Counter[str](), dict[str, int]()
    texts = documents(sources, options, counts, skipped)
    for number, text in enumerate(grouped(texts, options.file_megabytes * 1_000_000)):
        for name in ("manifest.json", *files.names(folder)) if number == 0 else ():
            files.remove(join(folder, name))
        name = f"text-{number:05d}.txt"
        files.write_text(join(folder, name), text)
        listed[name] = len(text.encode())
    if not listed:
        paths = ", ".join(path for path, _ in sources)
        raise JobError(f"no text in {paths}: {', '.join(sorted(skipped)) or 'empty'}", 2)
    manifest: dict[str, Any] = {"counts": counts, "skipped": skipped, "files": listed}
    manifest["sources"] = [{"name": path} for path, _ in sources]
    if any(kind == "dump" or wikipedia.WIKIPEDIA in path for path, kind in sources):
        manifest["license"] = "cc-by-sa-4.0"
    return manifest


def documents(
    sources: Any, options: argparse.Namespace, counts: Counter[str], skipped: Counter[str]
) -> Iterator[str]:
    """Yield the documents of all sources, and count them."""
    from tqdm import tqdm

    for path, kind in sources:
        read = wikipedia.read(path, kind, options, skipped)
        batches = iter(lambda read=read: list(islice(read, BATCH)), [])
        extracted = in_processes(wikipedia.extract, batches, options.processes)
        for texts, sentences, others in tqdm(extracted, path, unit="batch", disable=None):
            yield from texts
            counts.update(documents=len(texts), sentences=sentences)
            skipped.update(others)


def grouped(documents: Iterable[str], limit: int) -> Iterator[str]:
    """Yield documents together, as soon as they have a size in bytes."""
    batch, size = [], 0
    for document in documents:
        batch.append(document)
        size += len(document.encode())
        if size >= limit:
            yield "".join(batch)
            batch, size = [], 0
    if batch:
        yield "".join(batch)


def vocabulary_stage(options: argparse.Namespace) -> None:
    text, folder = manifest_of_stage(options.data, "text"), join(options.data, "tokenizer")
    key = fingerprint("vocabulary", text["fingerprint"], options.vocabulary_size, options.sample)
    manifest, how = files.read_json(join(folder, "manifest.json")), "kept"
    if manifest.get("fingerprint") != key:
        step = max(1, round(sum(text["files"].values()) / (options.sample * 1_000_000)))
        paths = [join(options.data, "text", name) for name in text["files"]][::step]
        tokenizer = train_vocabulary(
            lambda: chain.from_iterable(map(read_lines, paths)), options.vocabulary_size
        )
        size, digest, how = tokenizer.get_vocab_size(), vocabulary_hash(tokenizer), "trained"
        manifest = {"fingerprint": key, "vocabulary_size": size, "vocabulary_hash": digest}
        files.write_text(join(folder, "tokenizer.json"), tokenizer.to_str(pretty=True))
        files.write_json(join(folder, "manifest.json"), manifest)
    print(f"vocabulary: {manifest['vocabulary_size']:,} word pieces in {folder}, {how}")


def records_stage(options: argparse.Namespace) -> None:
    data, folder = options.data, join(options.data, "records")
    text = manifest_of_stage(data, "text")
    manifest_of_stage(data, "vocabulary")
    tokenizer_json = files.read_text(join(data, "tokenizer", "tokenizer.json"))
    tokenizer, plan, key = records_plan(options, text, tokenizer_json)
    is_kept = files.read_json(join(folder, "manifest.json")).get("fingerprint") == key
    paths = [join(data, "text", name) for name in text["files"]]
    manifest = write(paths, folder, tokenizer, plan, key, options.processes)
    amount = f"{manifest['counts']['sequences']:,} sequences of {plan.sequence_length} tokens"
    print(f"records: {amount} in {folder}, {'kept' if is_kept else 'written'}")


def records_plan(
    options: argparse.Namespace, text: dict[str, Any], tokenizer_json: str
) -> tuple[Any, Plan, str]:
    """Return the tokenizer, the plan, and the fingerprint of the records."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(tokenizer_json)
    settings = ("sequence_length", "pairs", "duplication", "held_out", "seed")
    plan = Plan(**{name: getattr(options, name) for name in settings})
    key = fingerprint(text["fingerprint"], vocabulary_hash(tokenizer), asdict(plan))
    return tokenizer, plan, key


def manifest_of_stage(data: str, stage: str) -> dict[str, Any]:
    """Return the manifest of an earlier stage. Raises JobError if it is not complete."""
    folder = join(data, {"vocabulary": "tokenizer"}.get(stage, stage))
    manifest = files.read_json(join(folder, "manifest.json"))
    if not manifest:
        problem = f"no complete {stage} in {folder}"
        raise JobError(f"{problem}; create it first: python prepare.py {stage} --data {data}", 2)
    return manifest


def main(arguments: list[str] | None = None) -> int:
    """Run a stage; return the exit code."""
    how = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(prog="prepare.py", description="Prepare text for training.")
    stages = parser.add_subparsers(metavar="STAGE", required=True)
    for name, run, text in (
        ("text", text_stage, "extract sentences from sources"),
        ("vocabulary", vocabulary_stage, "train a WordPiece vocabulary on the text"),
        ("records", records_stage, "write the text as token sequences"),
    ):
        stage = stages.add_parser(name, help=text, description=text, formatter_class=how)
        stage.set_defaults(run=run)
        add_options(stage, name)
    options = parser.parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        return files.report(lambda: options.run(options) or 0)
    except KeyboardInterrupt:
        print("\nstopped; run the same command again to resume", file=sys.stderr, flush=True)
        return 130


if __name__ == "__main__":
    sys.exit(main())
