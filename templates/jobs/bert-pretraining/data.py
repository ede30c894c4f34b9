"""The records to train on: those of the template korean-wikipedia, or made here from plain text.

A record is a row of 16-bit numbers, little endian: the label of its pair of segments, then the
tokens `[CLS] first [SEP]`, or `[CLS] first [SEP] second [SEP]`, padded with zeros. Words are masked
when records are read. Plain text makes one file without pairs, which is enough for some megabytes.
"""

import argparse
import random
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import files
from files import JobError, join
from vocabulary import documents, fingerprint, read_lines, train_vocabulary, vocabulary_hash

COMPRESSION = "GZIP"
MIN_TOKENS = 8  # a document's shorter rest is left out
TRAINING, HELD_OUT = "part-00000.tfrecord.gz", "held-out-00000.tfrecord.gz"
START, SEPARATOR = 2, 3  # the ids of [CLS] and [SEP]


def prepared(folder: str) -> dict[str, Any]:
    """Return the manifest of existing records. Raises JobError if they are not complete."""
    from tokenizers import Tokenizer

    manifest = files.read_json(join(folder, "records", "manifest.json"))
    command = f"python prepare.py records --data {folder}"
    if not manifest:
        raise JobError(f"no records in {folder}/records; create them first: {command}", 2)
    text = files.read_text(join(folder, "tokenizer", "tokenizer.json"))
    if not text or vocabulary_hash(Tokenizer.from_str(text)) != manifest["vocabulary_hash"]:
        problem = f"the vocabulary in {folder}/tokenizer does not match the records"
        raise JobError(f"{problem}; create them again: {command}", 2)
    return manifest


def from_text(options: argparse.Namespace, log: Callable[[str], None]) -> dict[str, Any]:
    """Return the manifest of the records of --text, written to --output unless they exist there."""
    began, target = time.monotonic(), join(options.data, "records", "manifest.json")
    if files.read_json(join(options.data, "text", "manifest.json")):
        problem = f"{options.data} has data from prepare.py, which would be overwritten"
        raise JobError(f"{problem}: use --data {options.data}, or choose another --output", 2)
    names = [name for name in files.names(options.text) if name.endswith(".txt")]
    skipped: Counter[str] = Counter()
    texts = [
        text for name in names for text in documents(read_lines(join(options.text, name)), skipped)
    ]
    if not texts:
        raise JobError(f"no .txt files with text in {options.text}", 2)
    log(f"text: {options.text} ({', '.join(names)})")
    settings = {"sequence_length": options.sequence_length, "seed": options.seed}
    settings |= {"held_out": options.held_out, "pairs": "none"}
    key = fingerprint(texts, options.vocabulary_size, settings)
    manifest = files.read_json(target)
    how = "kept" if manifest.get("fingerprint") == key else "written"
    if how == "written":
        tokenizer = train_vocabulary(lambda: chain.from_iterable(texts), options.vocabulary_size)
        tokenizer_path = join(options.data, "tokenizer", "tokenizer.json")
        files.write_text(tokenizer_path, tokenizer.to_str(pretty=True))
        manifest = {
            **settings,
            "fingerprint": key,
            "vocabulary_size": tokenizer.get_vocab_size(),
            "vocabulary_hash": vocabulary_hash(tokenizer),
            **write_records(texts, tokenizer, options, target.rpartition("/")[0]),
        }
        manifest["counts"] |= skipped
        files.write_json(target, manifest)  # last: without it, the records are written again
    counts = manifest["counts"]
    log(
        f"records: {counts['sequences']:,} sequences of {options.sequence_length} from "
        f"{counts['sentences']:,} sentences, {manifest['vocabulary_size']:,} word pieces, {how} "
        f"({time.monotonic() - began:.1f} s)"
    )
    return manifest


def write_records(
    texts: list[list[str]], tokenizer: Any, options: argparse.Namespace, folder: str
) -> dict[str, Any]:
    """Write the records of documents; return their counts and files."""
    import tensorflow as tf

    # "[MASK]" in a text is five letters and two brackets, not a hidden word.
    tokenizer.encode_special_tokens = True
    generator = random.Random(options.seed)
    count = round(options.held_out * len(texts)) or int(options.held_out > 0 and len(texts) > 7)
    held_out = set(generator.sample(range(len(texts)), count))
    rows: dict[str, list[bytes]] = {TRAINING: [], HELD_OUT: []}
    for number, text in enumerate(texts):
        name = HELD_OUT if number in held_out else TRAINING
        rows[name] += sequences(tokenizer, text, options.sequence_length)
    generator.shuffle(rows[TRAINING])
    how = tf.io.TFRecordOptions(compression_type=COMPRESSION, compression_level=1)
    with files.file_errors(folder, is_written=True):
        files.make_folder(folder)
        for name, listed in rows.items():
            with tf.io.TFRecordWriter(join(folder, name), how) as writer:
                for row in listed:
                    writer.write(row)
    counts = {"documents": len(texts) - count, "sentences": sum(map(len, texts))}
    counts |= {"sequences": len(rows[TRAINING]), "held_out_sequences": len(rows[HELD_OUT])}
    written = {"files": [TRAINING], "held_out_files": [HELD_OUT] if rows[HELD_OUT] else []}
    return {
        "counts": counts,
        **{kind: files.sizes(folder, listed) for kind, listed in written.items()},
    }


def sequences(tokenizer: Any, sentences: list[str], length: int) -> Iterator[bytes]:
    """Yield the records of a document: its tokens in order, cut where a sequence is full."""
    encodings = tokenizer.encode_batch_fast(sentences, add_special_tokens=False)
    tokens = list(chain.from_iterable(encoding.ids for encoding in encodings))
    for start in range(0, len(tokens), length - 2):
        part = tokens[start : start + length - 2]
        if len(part) >= MIN_TOKENS:
            row = [0, START, *part, SEPARATOR]
            yield struct.pack(f"<{len(row)}H", *row).ljust(2 * (length + 1), b"\0")
