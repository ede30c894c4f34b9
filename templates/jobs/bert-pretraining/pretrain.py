"""Pretrain a small BERT on a folder of text: vocabulary, then records, then training.

    python pretrain.py                 # all stages, with defaults for a first run
    python pretrain.py --data FOLDER   # training only, on the output of prepare.py
    python pretrain.py --help          # all options

A stage whose results exist is skipped, so an interrupted run resumes.
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
    "FORCE_TF_AVAILABLE": "1",  # transformers does not recognize the TPU build of TensorFlow
    "USE_TORCH": "0",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TRANSFORMERS_VERBOSITY": "error",
}
PREEMPTION_TIMEOUT = 90.0  # seconds after a notice, by which the machine should have stopped
KEEP_ALIVE: list[Any] = []  # not garbage-collected before exit: see run_and_exit()


def log(text: str) -> None:
    print(text, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run the stages; return the exit code."""
    options = parse(arguments)
    log(f"BERT pretraining: starting TensorFlow (Python {platform.python_version()})")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        return run(options)
    except JobError as error:
        sys.stdout.flush()
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code


def run(options: argparse.Namespace) -> int:
    # TensorFlow takes seconds to import: parse the options and print the first line before.
    began = time.monotonic()
    import tensorflow as tf

    import files
    import stages
    from training import input_pipeline, memory
    from training.interruption import Stop
    from training.loop import Trainer
    from training.strategy import choose

    stop = Stop()
    tf.get_logger().setLevel("ERROR")
    choice = choose(options.device, options.replicas)
    check(options, choice.replicas, choice.is_remote)
    log(f"TensorFlow {tf.__version__} on {choice.description} ({stages.elapsed(began)})")
    log(f"output: {options.output}")
    # Written first, so that an output folder that is not writable fails early.
    files.write_json(files.join(options.output, "options.json"), vars(options))
    if options.is_prepared:
        manifest = stages.load_prepared(options.data, log)
    else:
        manifest = stages.build(options, log)
    if options.until != "train":
        return 0
    stages.check_enough(manifest, options, log)

    trainer = Trainer(options, choice, manifest, stop)
    KEEP_ALIVE.append(trainer)
    try:
        return train(trainer)
    except (tf.errors.OpError, MemoryError) as error:
        folder = files.join(options.data, "records")
        job_error = input_pipeline.damaged_file(error, folder, manifest) or memory.explain(
            f"{type(error).__name__}: {error}",
            batch=options.batch,
            replicas=choice.replicas,
            parameters=trainer.parameters,
            parts=options.accumulation,
        )
        if job_error is None:
            raise
        raise job_error from error


def train(trainer: Any) -> int:
    """Train the remaining steps, then write the result; return the exit code."""
    from stages import elapsed
    from training import interruption
    from training.result import is_complete, write_result

    options, stop, checkpoints = trainer.options, trainer.stop, trainer.checkpoints
    log(f"model: {options.size}, {trainer.parameters:,} parameters")
    if restored := checkpoints.restore():
        log(f"resuming from step {trainer.step} ({restored})")
    if options.only_export and not restored:
        raise JobError(f"--only-export: no checkpoint in {checkpoints.folder}", 2)
    summary: dict[str, float] = {}
    if trainer.step < options.steps and not options.only_export:
        began = time.monotonic()
        log("compiling the training loop")
        trainer.compile()
        log(f"compiled for {trainer.choice.replicas} replicas ({elapsed(began)})")
        stop.deferred = True
        interruption.watch_metadata(stop, checkpoints)
        summary = trainer.run()
        if stop.reason:
            log(f"{stop.reason}: saving before exit")
        log(f"checkpoint: {checkpoints.save(trainer.step)}")
        if stop.reason:
            reached = f"step {trainer.step} of {options.steps}"
            log(f"stopped at {reached}; the next run resumes from there")
            return stop.wait_for_exit_code(PREEMPTION_TIMEOUT)
        stop.deferred = False
        log(
            f"done: {summary['steps']} steps in {summary['seconds']:.0f} s, loss "
            f"{summary['first_loss']:.3f} -> {summary['last_loss']:.3f}, "
            f"{summary['tokens_per_second']:,} tokens/s"
        )
    elif not options.only_export:
        log(f"already trained to step {trainer.step}; increase --steps to continue")
    if options.only_export or not is_complete(options.output, trainer.step):
        write_result(trainer, summary, log)
    return 0


def run_and_exit() -> NoReturn:
    """Run, then exit the process without tearing down TensorFlow.

    Deleting the input pipeline of many replicas can wait a minute for tf.data's tuner. All files
    are closed by then, so nothing is lost.
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
    run_and_exit()
