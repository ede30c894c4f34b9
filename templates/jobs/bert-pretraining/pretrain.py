"""Pretrain a small BERT on a folder of text: vocabulary, then records, then training.

    python pretrain.py                 # everything, with defaults for a first look
    python pretrain.py --help          # every choice

A stage whose results are there already is skipped, so a run that was cut short goes on.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

from corpus.text import fingerprint
from errors import JobError
from options import check, parse

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["main"]

ENVIRONMENT = {
    "TF_USE_LEGACY_KERAS": "1",  # transformers' TensorFlow models need Keras 2
    "FORCE_TF_AVAILABLE": "1",  # transformers does not know the package of a TPU's TensorFlow
    "USE_TORCH": "0",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TRANSFORMERS_VERBOSITY": "error",
}
KEPT: list[Any] = []  # alive until the process ends: see leave()


def say(text: str) -> None:
    print(text, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run the stages; return the exit code."""
    options = parse(arguments)
    say(f"BERT pretraining: starting TensorFlow (Python {platform.python_version()})")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        return run(options)
    except JobError as error:
        sys.stdout.flush()
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code


def run(options: argparse.Namespace) -> int:
    # TensorFlow takes seconds to import: not before the first line is out and the usage is right.
    began = time.monotonic()
    import tensorflow as tf

    import files
    from training.interruption import Stop
    from training.loop import Trainer
    from training.strategy import choose

    stop = Stop()
    tf.get_logger().setLevel("ERROR")
    choice = choose(options.device, options.replicas)
    check(options, choice.replicas)
    say(f"TensorFlow {tf.__version__} on {choice.description} ({elapsed(began)})")

    paths = files.text_files(options.text)
    if not paths:
        raise JobError(f"no .txt files in {options.text}", 2)
    text_hash = fingerprint([files.sha256(path) for path in paths])
    say(f"text: {options.text} ({', '.join(path.rpartition('/')[2] for path in paths)})")
    say(f"output: {options.output}")
    # First of all outputs, so that a place that cannot be written is found before the work.
    files.write_json(files.join(options.output, "options.json"), vars(options))

    tokenizer = tokenizer_stage(options, paths, text_hash)
    if options.until == "tokenizer":
        return 0
    manifest = records_stage(options, paths, text_hash, tokenizer)
    if options.until == "records":
        return 0

    began = time.monotonic()
    trainer = Trainer(options, choice, manifest, stop)
    KEPT.append(trainer)
    say(f"model: {options.size}, {trainer.parameters:,} parameters; compiling the training loop")
    if restored := trainer.checkpoints.restore():
        say(f"resuming from step {trainer.step} ({restored})")
    if trainer.step >= options.steps:
        say(f"already trained to step {trainer.step}; more --steps would go on")
        return 0
    trainer.compile()
    say(f"compiled the training loop for {choice.replicas} replicas ({elapsed(began)})")
    stop.deferred = True
    summary = trainer.run()
    if stop.signal is not None:
        say(f"{signal.Signals(stop.signal).name}: saving before the end")
    say(f"checkpoint: {trainer.checkpoints.save(trainer.step)}")
    if stop.signal is not None:
        say(f"stopped at step {trainer.step} of {options.steps}; the next run goes on from there")
        return 128 + stop.signal
    stop.deferred = False
    say(
        f"done: {summary['steps']} steps in {summary['seconds']:.0f} s, loss "
        f"{summary['first_loss']:.3f} -> {summary['last_loss']:.3f}, "
        f"{summary['tokens_per_second']:,} tokens/s"
    )
    from training.examples import fill_mask

    for line in fill_mask(trainer.network, tokenizer, paths, options.sequence_length):
        say(f"example: {line}")
    return 0


def tokenizer_stage(options: argparse.Namespace, paths: list[str], text_hash: str) -> Tokenizer:
    """Return the vocabulary of the text, from the output folder when it is there."""
    import files
    from corpus import wordpiece

    began = time.monotonic()
    folder = files.join(options.output, "tokenizer")
    key = fingerprint("tokenizer", 1, text_hash, options.vocabulary_size)
    tokenizer = wordpiece.load(folder, key)
    how = "kept"
    if tokenizer is None:
        tokenizer = wordpiece.train(paths, options.vocabulary_size)
        wordpiece.save(tokenizer, folder, key)
        how = "trained"
    say(f"tokenizer: {tokenizer.get_vocab_size()} word pieces, {how} ({elapsed(began)})")
    return tokenizer


def records_stage(
    options: argparse.Namespace, paths: list[str], text_hash: str, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Return the manifest of the records, written unless they are in the output folder."""
    import files
    from corpus import records, wordpiece

    began = time.monotonic()
    plan = records.RecordsPlan(
        options.sequence_length,
        options.predictions,
        options.duplication,
        options.shards,
        options.seed,
    )
    folder = files.join(options.output, "records")
    vocabulary = wordpiece.vocabulary_hash(tokenizer)
    key = fingerprint("records", 1, text_hash, vocabulary, vars(plan))
    manifest = records.load(folder, key)
    how = "kept"
    if manifest is None:
        manifest = records.write(paths, tokenizer, plan, folder, key)
        how = "written"
    counts = manifest["counts"]
    if counts["sequences"] < options.batch:
        raise JobError(
            f"the text gives {counts['sequences']} sequences, fewer than --batch {options.batch}: "
            f"add text to {options.text}",
            2,
        )
    say(
        f"records: {counts['sequences']:,} sequences of {options.sequence_length} from "
        f"{counts['sentences']:,} sentences, {how} ({elapsed(began)}); "
        f"training sees each {options.steps * options.batch / counts['sequences']:.1f} times"
    )
    return manifest


def elapsed(began: float) -> str:
    return f"{time.monotonic() - began:.1f} s"


def leave() -> NoReturn:
    """Run and end the process without taking TensorFlow apart.

    Deleting the input pipeline of many replicas can wait a minute for tf.data's tuner to wake.
    All files are closed by then, so nothing is lost.
    """
    try:
        code = main()
    except SystemExit as request:
        code = request.code if isinstance(request.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave()
