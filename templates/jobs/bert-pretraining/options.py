"""The command line of `pretrain.py`: every choice with its default, checked before any work."""

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
    "settle_records_options",
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
    """Return the options; wrong usage ends the process with code 2, as argparse does."""
    parser = argparse.ArgumentParser(
        prog="pretrain.py",
        description="Pretrain a small BERT on text: vocabulary, records, training.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    place = parser.add_argument_group("where")
    place.add_argument(
        "--text", help="folder of .txt files, may be gs://; data/ when it has some, else sample/"
    )
    place.add_argument(
        "--output",
        default=os.environ.get("TPUCTL_OUTPUT") or "output",
        help="folder for all results, may be gs://; from TPUCTL_OUTPUT when that is set",
    )
    place.add_argument(
        "--data",
        help="folder with what prepare.py made, may be gs://; else the data is made from --text, "
        "in the output folder",
    )
    place.add_argument("--until", choices=STAGES, default="train", help="stop after this stage")
    place.add_argument(
        "--only-export",
        action="store_true",
        help="evaluate and export the newest checkpoint, without training",
    )

    data = parser.add_argument_group("data")
    add_tokenizer_options(data)
    add_records_options(data)

    model = parser.add_argument_group("model and training")
    model.add_argument("--size", choices=SIZES, default="tiny")
    model.add_argument("--dropout", type=share, help="0.1; none for tiny, which cannot overfit")
    model.add_argument("--batch", type=positive, default=64, help="sequences, over all replicas")
    model.add_argument(
        "--accumulation", type=positive, default=1, help="parts of a replica's share of the batch"
    )
    model.add_argument("--steps", type=positive, default=500)
    model.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    model.add_argument("--warmup-steps", type=count, help="a tenth of the steps")
    model.add_argument("--learning-rate", type=positive_number, default=2e-3)
    model.add_argument("--decay", choices=DECAYS, default="linear", help="of the learning rate")
    model.add_argument("--weight-decay", type=share, default=0.01)
    model.add_argument("--clip-norm", type=positive_number, default=1.0)
    model.add_argument(
        "--precision", choices=PRECISIONS, default="auto", help="auto: bfloat16 on TPU and GPU"
    )

    run = parser.add_argument_group("the run")
    run.add_argument("--device", choices=("auto", "tpu", "gpu", "cpu"), default="auto")
    run.add_argument("--replicas", type=positive, help="on CPU; as many as the slice would have")
    run.add_argument(
        "--xla", choices=("auto", "on", "off"), default="auto", help="auto: on GPU; a TPU has it on"
    )
    run.add_argument("--steps-per-call", type=positive, default=20, help="also the log's interval")
    run.add_argument("--checkpoint-minutes", type=positive_number, default=10.0)
    run.add_argument("--checkpoint-steps", type=count, default=0, help="0: by minutes alone")
    run.add_argument("--keep-checkpoints", type=positive, default=3)

    options = parser.parse_args(arguments)
    settle_records_options(options)
    if options.dropout is None:
        options.dropout = 0.0 if options.size == "tiny" else 0.1
    if options.warmup_steps is None:
        options.warmup_steps = options.steps // 10
    options.is_prepared = options.data is not None
    if options.data is None:
        options.data = options.output
    if options.text is None:
        given = HERE / "data"
        options.text = str(given if any(given.glob("*.txt")) else HERE / "sample")
    return options


def add_tokenizer_options(group: Any) -> None:
    """Add what decides the vocabulary, besides the text."""
    group.add_argument("--vocabulary-size", type=positive, default=3000)
    group.add_argument(
        "--tokenizer-sample",
        type=positive,
        default=200,
        metavar="MB",
        help="of a larger text only so much is read for the vocabulary, evenly spread",
    )


def add_records_options(group: Any) -> None:
    """Add what decides the records, besides the text and the vocabulary."""
    group.add_argument("--sequence-length", type=positive, default=64)
    group.add_argument("--predictions", type=positive, help="per sequence; 15 %%, at most 20")
    group.add_argument(
        "--pairs",
        choices=PAIRS,
        default="nsp",
        help="of segments: of which half are from elsewhere (nsp) or swapped (sop), or none",
    )
    group.add_argument(
        "--masking",
        choices=MASKING,
        default="static",
        help="in the records, or anew whenever they are read",
    )
    group.add_argument(
        "--whole-words",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="hide all pieces of a word together",
    )
    group.add_argument(
        "--duplication", type=positive, help="copies of the text; 5, and 1 if masking is dynamic"
    )
    group.add_argument(
        "--held-out", type=share, default=0.01, help="share of the documents, for evaluation alone"
    )
    group.add_argument(
        "--shards", type=positive, help="record files; one for each 32 MB of text, at least 4"
    )
    group.add_argument("--processes", type=positive, help="as many as there are processors")
    group.add_argument("--seed", type=seed, default=1)


def settle_records_options(options: argparse.Namespace) -> None:
    """Fill in the defaults that follow from other choices."""
    if options.predictions is None:
        options.predictions = default_predictions(options.sequence_length)
    if options.duplication is None:
        options.duplication = 5 if options.masking == "static" else 1


def records_plan(options: argparse.Namespace, text_bytes: int) -> RecordsPlan:
    """Return the plan of the records that the options ask for."""
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
    """Raise JobError for a vocabulary that cannot be."""
    if options.vocabulary_size < 100:
        raise JobError("--vocabulary-size must be at least 100", 2)


def check_records_options(options: argparse.Namespace) -> None:
    """Raise JobError for records that cannot be."""
    if options.sequence_length < 16:
        raise JobError("--sequence-length must be at least 16", 2)
    if not 0 < options.predictions <= options.sequence_length - 2:
        raise JobError(
            f"--predictions {options.predictions} do not fit into "
            f"--sequence-length {options.sequence_length}",
            2,
        )


def check(options: argparse.Namespace, replicas: int, is_remote: bool = False) -> None:
    """Raise JobError for choices that are fine alone but do not go together.

    `is_remote` says that other machines than this one read the records: they see buckets alone.
    """
    for name in ("output", "data") if is_remote else ():
        if not getattr(options, name).startswith("gs://"):
            raise JobError(
                f"--{name} {getattr(options, name)}: the TPU's own machines cannot see it; "
                "name a folder in a bucket, gs://…",
                2,
            )
    if options.batch % replicas:
        below = options.batch - options.batch % replicas
        near = f"{below} or {below + replicas}" if below else f"{replicas}"
        raise JobError(
            f"--batch {options.batch} cannot be shared equally by {replicas} replicas; try {near}",
            2,
        )
    if options.batch // replicas % options.accumulation:
        raise JobError(
            f"--accumulation {options.accumulation} does not divide the "
            f"{options.batch // replicas} sequences that each of {replicas} replicas takes",
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
        raise argparse.ArgumentTypeError("must be from 0 to below 1")
    return value
