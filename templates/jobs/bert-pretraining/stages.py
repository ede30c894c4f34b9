"""The data that training reads: as `prepare.py` left it, or made here from a folder of text."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer

import files
from corpus import records, wordpiece
from corpus.text import fingerprint
from errors import JobError
from options import records_plan

__all__ = ["check_enough", "elapsed", "made", "prepared"]

Say = Callable[[str], None]


def prepared(folder: str, say: Say) -> dict[str, Any]:
    """Return the manifest of the records in a data folder.

    Raises JobError when there are none, or when the tokenizer beside them is another than theirs.
    """
    manifest = files.read_json(files.join(folder, "records", "manifest.json"))
    if not manifest:
        raise JobError(
            f"no records in {folder}/records; make them first: "
            f"python prepare.py records --data {folder}",
            2,
        )
    text = files.read_text(files.join(folder, "tokenizer", "tokenizer.json"))
    if text is None:
        raise JobError(f"no tokenizer in {folder}/tokenizer, though there are records", 2)
    tokenizer = Tokenizer.from_str(text)
    if wordpiece.vocabulary_hash(tokenizer) != manifest["vocabulary_sha256"]:
        raise JobError(
            f"the vocabulary in {folder}/tokenizer ({tokenizer.get_vocab_size():,} word pieces) is "
            f"not the one of {folder}/records ({manifest['vocabulary_size']:,}); make the records "
            f"again: python prepare.py records --data {folder}",
            2,
        )
    say(f"data: {folder}")
    return manifest


def made(options: argparse.Namespace, say: Say) -> dict[str, Any]:
    """Return the manifest of the records, made from text unless they are there already.

    Empty when `--until` ends the run before there are any.
    """
    if files.exists(files.join(options.data, "text", "manifest.json")):
        raise JobError(
            f"{options.data} has data from prepare.py, which would be overwritten: to train on it, "
            f"name it with --data {options.data}; else choose another --output",
            2,
        )
    paths = files.text_files(options.text)
    if not paths:
        raise JobError(f"no .txt files in {options.text}", 2)
    text_hash = fingerprint([files.sha256(path) for path in paths])
    say(f"text: {options.text} ({', '.join(path.rpartition('/')[2] for path in paths)})")
    tokenizer = tokenizer_stage(options, paths, text_hash, say)
    if options.until == "tokenizer":
        return {}
    return records_stage(options, paths, text_hash, tokenizer, say)


def tokenizer_stage(
    options: argparse.Namespace, paths: list[str], text_hash: str, say: Say
) -> Tokenizer:
    """Return the vocabulary of the text, from the data folder when it is there."""
    began = time.monotonic()
    folder = files.join(options.data, "tokenizer")
    key = fingerprint("tokenizer", 2, text_hash, options.vocabulary_size, options.tokenizer_sample)
    tokenizer = wordpiece.load(folder, key)
    how = "kept"
    if tokenizer is None:
        tokenizer = wordpiece.train(paths, options.vocabulary_size, options.tokenizer_sample)
        wordpiece.save(tokenizer, folder, key)
        how = "trained"
    say(f"tokenizer: {tokenizer.get_vocab_size()} word pieces, {how} ({elapsed(began)})")
    return tokenizer


def records_stage(
    options: argparse.Namespace, paths: list[str], text_hash: str, tokenizer: Tokenizer, say: Say
) -> dict[str, Any]:
    """Return the manifest of the records, written unless they are in the data folder."""
    began = time.monotonic()
    plan = records_plan(options, sum(files.stamp(path)[0] for path in paths))
    folder = files.join(options.data, "records")
    key = records.key_of(text_hash, tokenizer, plan)
    manifest = records.load(folder, key)
    how = "kept"
    if manifest is None:
        manifest = records.write(paths, tokenizer, plan, folder, key, options.processes)
        how = "written"
    counts = manifest["counts"]
    say(
        f"records: {counts['sequences']:,} sequences of {options.sequence_length} from "
        f"{counts['sentences']:,} sentences, {how} ({elapsed(began)})"
    )
    return manifest


def check_enough(manifest: dict[str, Any], options: argparse.Namespace, say: Say) -> None:
    """Say how often training sees each sequence; raise JobError when they do not fill a batch."""
    sequences = manifest["counts"]["sequences"]
    if sequences < options.batch:
        raise JobError(
            f"there are {sequences} sequences, fewer than --batch {options.batch}: "
            "add text, or choose a smaller batch",
            2,
        )
    times = options.steps * options.batch / sequences
    say(f"training sees each of {sequences:,} sequences {times:.1f} times")


def elapsed(began: float) -> str:
    """Return how long ago a moment of `time.monotonic` was."""
    return f"{time.monotonic() - began:.1f} s"
