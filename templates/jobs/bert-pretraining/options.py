"""The command line of `pretrain.py`: every option with its default, validated up front."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from corpus.plan import (
    MASKING,
    PAIRS,
    RecordsPlan,
    default_predictions,
    default_shards,
)
from errors import JobError

__all__ = [
    "HERE",
    "SIZES",
    "STAGES",
    "add_records_options",
    "add_tokenizer_options",
    "check",
    "check_records_options",
    "check_tokenizer_options",
    "parse",
    "positive",
    "records_plan",
    "set_records_defaults",
]

HERE = Path(__file__).resolve().parent
STAGES = ("tokenizer", "records", "train")

# name: layers, hidden size, attention heads; the inner layer is four times the hidden size
SIZES = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}
OPTIMIZERS = ("adamw", "lamb")
DECAYS = ("linear", "cosine", "constant")
PRECISIONS = ("auto", "float32", "bfloat16")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the options; argparse exits with code 2 on invalid usage."""
    parser = argparse.ArgumentParser(
        prog="pretrain.py",
        description="Pretrain a small BERT on text: vocabulary, records, training.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    paths = parser.add_argument_group("paths and stages")
    paths.add_argument(
        "--text",
        help="folder of .txt files, may be gs:// (default: data/ if it has any, else sample/)",
    )
    paths.add_argument(
        "--output",
        default=os.environ.get("TPUCTL_OUTPUT") or "output",
        help="folder for all results, may be gs://; defaults to TPUCTL_OUTPUT if set",
    )
    paths.add_argument(
        "--data",
        help="folder with the output of prepare.py, may be gs:// (default: prepare --text in the "
        "output folder)",
    )
    paths.add_argument("--until", choices=STAGES, default="train", help="stop after this stage")
    paths.add_argument(
        "--only-export",
        action="store_true",
        help="evaluate and export the newest checkpoint, without training",
    )

    data = parser.add_argument_group("data")
    add_tokenizer_options(data)
    add_records_options(data)

    model = parser.add_argument_group("model and training")
    model.add_argument("--size", choices=SIZES, default="tiny")
    model.add_argument("--dropout", type=share, help="dropout rate (default: 0 for tiny, else 0.1)")
    model.add_argument(
        "--batch", type=positive, default=64, help="sequences per step over all replicas"
    )
    model.add_argument(
        "--accumulation",
        type=positive,
        default=1,
        help="gradient accumulation: parts that each replica splits its share of a batch into",
    )
    model.add_argument("--steps", type=positive, default=500)
    model.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    model.add_argument("--warmup-steps", type=count, help="default: a tenth of --steps")
    model.add_argument("--learning-rate", type=positive_number, default=2e-3)
    model.add_argument("--decay", choices=DECAYS, default="linear", help="learning rate decay")
    model.add_argument("--weight-decay", type=share, default=0.01)
    model.add_argument("--clip-norm", type=positive_number, default=1.0)
    model.add_argument(
        "--precision", choices=PRECISIONS, default="auto", help="auto: bfloat16 on TPU and GPU"
    )

    run = parser.add_argument_group("the run")
    run.add_argument("--device", choices=("auto", "tpu", "gpu", "cpu"), default="auto")
    run.add_argument(
        "--replicas", type=positive, help="replicas on a CPU (default: as many as the slice has)"
    )
    run.add_argument(
        "--xla",
        choices=("auto", "on", "off"),
        default="auto",
        help="compile with XLA; auto: on GPU; always on for TPU",
    )
    run.add_argument(
        "--steps-per-call", type=positive, default=20, help="steps per call and per log line"
    )
    run.add_argument("--checkpoint-minutes", type=positive_number, default=10.0)
    run.add_argument("--checkpoint-steps", type=count, default=0, help="0: by time only")
    run.add_argument("--keep-checkpoints", type=positive, default=3)

    options = parser.parse_args(arguments)
    set_records_defaults(options)
    if options.dropout is None:
        options.dropout = 0.0 if options.size == "tiny" else 0.1
    if options.warmup_steps is None:
        options.warmup_steps = options.steps // 10
    options.is_prepared = options.data is not None
    if options.data is None:
        options.data = options.output
    if options.text is None:
        data_folder = HERE / "data"
        options.text = str(data_folder if any(data_folder.glob("*.txt")) else HERE / "sample")
    return options


def add_tokenizer_options(group: Any) -> None:
    """Add the options that determine the vocabulary, besides the text."""
    group.add_argument("--vocabulary-size", type=positive, default=3000)
    group.add_argument(
        "--tokenizer-sample",
        type=positive,
        default=200,
        metavar="MB",
        help="read at most this much text for the vocabulary, evenly sampled",
    )


def add_records_options(group: Any) -> None:
    """Add the options that determine the records, besides the text and the vocabulary."""
    group.add_argument("--sequence-length", type=positive, default=64)
    group.add_argument(
        "--predictions",
        type=positive,
        help="masked tokens per sequence (default: 15 %%, at most 20)",
    )
    group.add_argument(
        "--pairs",
        choices=PAIRS,
        default="nsp",
        help="segment pairs, half of them with a random second segment (nsp) or swapped (sop), or "
        "no pairs",
    )
    group.add_argument(
        "--masking",
        choices=MASKING,
        default="static",
        help="mask in the records (static), or on every read (dynamic)",
    )
    group.add_argument(
        "--whole-words",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="mask all pieces of a word together",
    )
    group.add_argument(
        "--duplication",
        type=positive,
        help="copies of the text (default: 5, or 1 with dynamic masking)",
    )
    group.add_argument(
        "--held-out", type=share, default=0.01, help="share of documents used only for evaluation"
    )
    group.add_argument(
        "--shards",
        type=positive,
        help="number of record files (default: one per 32 MB of text, at least 4)",
    )
    group.add_argument(
        "--processes", type=positive, help="worker processes (default: number of processors)"
    )
    group.add_argument("--seed", type=seed, default=1)


def set_records_defaults(options: argparse.Namespace) -> None:
    """Set the defaults that depend on other options."""
    if options.predictions is None:
        options.predictions = default_predictions(options.sequence_length)
    if options.duplication is None:
        options.duplication = 5 if options.masking == "static" else 1


def records_plan(options: argparse.Namespace, text_bytes: int) -> RecordsPlan:
    """Return the plan of the records for these options."""
    return RecordsPlan(
        sequence_length=options.sequence_length,
        predictions=options.predictions,
        duplication=options.duplication,
        shards=options.shards or default_shards(text_bytes),
        seed=options.seed,
        pairs=options.pairs,
        masking=options.masking,
        whole_words=options.whole_words,
        held_out=options.held_out,
    )


def check_tokenizer_options(options: argparse.Namespace) -> None:
    """Raise JobError for invalid vocabulary options."""
    if options.vocabulary_size < 100:
        raise JobError("--vocabulary-size must be at least 100", 2)


def check_records_options(options: argparse.Namespace) -> None:
    """Raise JobError for invalid records options."""
    if options.sequence_length < 16:
        raise JobError("--sequence-length must be at least 16", 2)
    if not 0 < options.predictions <= options.sequence_length - 2:
        raise JobError(
            f"--predictions {options.predictions} does not fit into "
            f"--sequence-length {options.sequence_length}",
            2,
        )


def check(options: argparse.Namespace, replicas: int, is_remote: bool = False) -> None:
    """Raise JobError for options that are incompatible with each other.

    With `is_remote`, other machines read the records: they can access only buckets.
    """
    for name in ("output", "data") if is_remote else ():
        if not getattr(options, name).startswith("gs://"):
            raise JobError(
                f"--{name} {getattr(options, name)}: the TPU's machines cannot read local files; "
                "use a folder in a bucket, gs://…",
                2,
            )
    if options.batch % replicas:
        below = options.batch - options.batch % replicas
        near = f"{below} or {below + replicas}" if below else f"{replicas}"
        raise JobError(
            f"--batch {options.batch} is not divisible by {replicas} replicas; try {near}",
            2,
        )
    if options.batch // replicas % options.accumulation:
        raise JobError(
            f"--accumulation {options.accumulation} does not divide the "
            f"{options.batch // replicas} sequences of each of {replicas} replicas",
            2,
        )
    check_tokenizer_options(options)
    check_records_options(options)
    if options.warmup_steps >= options.steps:
        raise JobError("--warmup-steps must be fewer than --steps", 2)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value


def seed(text: str) -> int:
    value = count(text)
    if value >= 2**31:
        raise argparse.ArgumentTypeError("must be below 2**31")
    return value


def positive_number(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError("must be at least 0 and below 1")
    return value
