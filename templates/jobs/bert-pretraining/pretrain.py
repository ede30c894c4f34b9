"""Pretrain a small BERT on a folder of text: vocabulary, then records, then training.

    python pretrain.py                 # everything, with defaults for a first look
    python pretrain.py --data FOLDER   # training alone, on what prepare.py made
    python pretrain.py --help          # every choice

A stage whose results are there already is skipped, so a run that was cut short goes on.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
import traceback
from typing import Any, NoReturn

from errors import JobError
from options import check, parse

__all__ = ["main"]

ENVIRONMENT = {
    "TF_USE_LEGACY_KERAS": "1",  # transformers' TensorFlow models need Keras 2
    "FORCE_TF_AVAILABLE": "1",  # transformers does not know the package of a TPU's TensorFlow
    "USE_TORCH": "0",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TRANSFORMERS_VERBOSITY": "error",
}
TAKEN_AWAY = 90.0  # seconds after a notice, when the machine should long be gone
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
    import stages
    from training import memory, reading
    from training.interruption import Stop
    from training.loop import Trainer
    from training.strategy import choose

    stop = Stop()
    tf.get_logger().setLevel("ERROR")
    choice = choose(options.device, options.replicas)
    check(options, choice.replicas, choice.is_remote)
    say(f"TensorFlow {tf.__version__} on {choice.description} ({stages.elapsed(began)})")
    say(f"output: {options.output}")
    # First of all outputs, so that a place that cannot be written is found before the work.
    files.write_json(files.join(options.output, "options.json"), vars(options))
    if options.is_prepared:
        manifest = stages.prepared(options.data, say)
    else:
        manifest = stages.made(options, say)
    if options.until != "train":
        return 0
    stages.check_enough(manifest, options, say)

    trainer = Trainer(options, choice, manifest, stop)
    KEPT.append(trainer)
    try:
        return train(trainer)
    except (tf.errors.OpError, MemoryError) as error:
        folder = files.join(options.data, "records")
        told = reading.damaged_file(error, folder, manifest) or memory.explain(
            f"{type(error).__name__}: {error}",
            batch=options.batch,
            replicas=choice.replicas,
            parameters=trainer.parameters,
            parts=options.accumulation,
        )
        if told is None:
            raise
        raise told from error


def train(trainer: Any) -> int:
    """Take the steps that are missing, then leave the result; return the exit code."""
    from stages import elapsed
    from training import interruption
    from training.result import is_there, leave_result

    options, stop, checkpoints = trainer.options, trainer.stop, trainer.checkpoints
    say(f"model: {options.size}, {trainer.parameters:,} parameters")
    if restored := checkpoints.restore():
        say(f"resuming from step {trainer.step} ({restored})")
    if options.only_export and not restored:
        raise JobError(f"--only-export: no checkpoint in {checkpoints.folder}", 2)
    summary: dict[str, float] = {}
    if trainer.step < options.steps and not options.only_export:
        began = time.monotonic()
        say("compiling the training loop")
        trainer.compile()
        say(f"compiled for {trainer.choice.replicas} replicas ({elapsed(began)})")
        stop.deferred = True
        interruption.watch(stop, checkpoints)
        summary = trainer.run()
        if stop.reason:
            say(f"{stop.reason}: saving before the end")
        say(f"checkpoint: {checkpoints.save(trainer.step)}")
        if stop.reason:
            reached = f"step {trainer.step} of {options.steps}"
            say(f"stopped at {reached}; the next run goes on from there")
            return stop.leave(TAKEN_AWAY)
        stop.deferred = False
        say(
            f"done: {summary['steps']} steps in {summary['seconds']:.0f} s, loss "
            f"{summary['first_loss']:.3f} -> {summary['last_loss']:.3f}, "
            f"{summary['tokens_per_second']:,} tokens/s"
        )
    elif not options.only_export:
        say(f"already trained to step {trainer.step}; more --steps would go on")
    if options.only_export or not is_there(options.output, trainer.step):
        leave_result(trainer, summary, say)
    return 0


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
