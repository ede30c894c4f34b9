"""The data for training: the output of `prepare.py`, or prepared here from a folder of text."""

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

__all__ = ["build", "check_enough", "elapsed", "load_prepared"]

Log = Callable[[str], None]


def load_prepared(folder: str, log: Log) -> dict[str, Any]:
    """Return the manifest of the records in a data folder.

    Raises JobError if there are none, or if the tokenizer next to them does not match.
    """
    manifest = files.read_json(files.join(folder, "records", "manifest.json"))
    if not manifest:
        raise JobError(
            f"no records in {folder}/records; create them first: "
            f"python prepare.py records --data {folder}",
            2,
        )
    text = files.read_text(files.join(folder, "tokenizer", "tokenizer.json"))
    if text is None:
        raise JobError(f"no tokenizer in {folder}/tokenizer for the existing records", 2)
    tokenizer = Tokenizer.from_str(text)
    if wordpiece.vocabulary_hash(tokenizer) != manifest["vocabulary_sha256"]:
        raise JobError(
            f"the vocabulary in {folder}/tokenizer ({tokenizer.get_vocab_size():,} word pieces) "
            f"does not match {folder}/records ({manifest['vocabulary_size']:,}); recreate the "
            f"records: python prepare.py records --data {folder}",
            2,
        )
    log(f"data: {folder}")
    return manifest


def build(options: argparse.Namespace, log: Log) -> dict[str, Any]:
    """Return the manifest of the records, built from text unless they exist.

    Empty if `--until` stops the run before the records stage.
    """
    if files.exists(files.join(options.data, "text", "manifest.json")):
        raise JobError(
            f"{options.data} has data from prepare.py, which would be overwritten: to train on it, "
            f"use --data {options.data}; otherwise choose another --output",
            2,
        )
    paths = files.text_files(options.text)
    if not paths:
        raise JobError(f"no .txt files in {options.text}", 2)
    text_hash = fingerprint([files.sha256(path) for path in paths])
    log(f"text: {options.text} ({', '.join(path.rpartition('/')[2] for path in paths)})")
    tokenizer = tokenizer_stage(options, paths, text_hash, log)
    if options.until == "tokenizer":
        return {}
    return records_stage(options, paths, text_hash, tokenizer, log)


def tokenizer_stage(
    options: argparse.Namespace, paths: list[str], text_hash: str, log: Log
) -> Tokenizer:
    """Return the vocabulary of the text, from the data folder if it exists there."""
    began = time.monotonic()
    folder = files.join(options.data, "tokenizer")
    key = fingerprint("tokenizer", 2, text_hash, options.vocabulary_size, options.tokenizer_sample)
    tokenizer = wordpiece.load(folder, key)
    how = "kept"
    if tokenizer is None:
        tokenizer = wordpiece.train(paths, options.vocabulary_size, options.tokenizer_sample)
        wordpiece.save(tokenizer, folder, key)
        how = "trained"
    log(f"tokenizer: {tokenizer.get_vocab_size()} word pieces, {how} ({elapsed(began)})")
    return tokenizer


def records_stage(
    options: argparse.Namespace, paths: list[str], text_hash: str, tokenizer: Tokenizer, log: Log
) -> dict[str, Any]:
    """Return the manifest of the records, written unless they exist in the data folder."""
    began = time.monotonic()
    plan = records_plan(options, sum(files.size_and_mtime(path)[0] for path in paths))
    folder = files.join(options.data, "records")
    key = records.key_of(text_hash, tokenizer, plan)
    manifest = records.load(folder, key)
    how = "kept"
    if manifest is None:
        manifest = records.write(paths, tokenizer, plan, folder, key, options.processes)
        how = "written"
    counts = manifest["counts"]
    log(
        f"records: {counts['sequences']:,} sequences of {options.sequence_length} from "
        f"{counts['sentences']:,} sentences, {how} ({elapsed(began)})"
    )
    return manifest


def check_enough(manifest: dict[str, Any], options: argparse.Namespace, log: Log) -> None:
    """Log how often training uses each sequence; raise JobError if they do not fill a batch."""
    sequences = manifest["counts"]["sequences"]
    if sequences < options.batch:
        raise JobError(
            f"{sequences} sequences are fewer than --batch {options.batch}: "
            "add text, or use a smaller batch",
            2,
        )
    times = options.steps * options.batch / sequences
    log(f"training uses each of {sequences:,} sequences {times:.1f} times")


def elapsed(began: float) -> str:
    """Format the time since a timestamp of `time.monotonic`."""
    return f"{time.monotonic() - began:.1f} s"
