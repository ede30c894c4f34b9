"""Pretrain a BERT: vocabulary and records of a text, then training, then the exported model.

    python pretrain.py                 # with defaults for a first run, on data/ or sample/
    python pretrain.py --data FOLDER   # training only, on records of the template korean-wikipedia
    python pretrain.py --help          # all options

What exists is kept, so an interrupted run resumes.
"""

import argparse
import os
import platform
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from data import from_text, prepared
from files import JobError, join, report, write_json
from vocabulary import MAX_VOCABULARY

HERE = Path(__file__).resolve().parent
ENVIRONMENT = {
    "TF_USE_LEGACY_KERAS": "1",  # transformers' TensorFlow models need Keras 2
    "FORCE_TF_AVAILABLE": "1",  # transformers does not recognize the TPU build of TensorFlow
    "USE_TORCH": "0",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TRANSFORMERS_VERBOSITY": "error",
}
PREEMPTION_TIMEOUT = 90.0  # seconds after a notice, by which the machine should have stopped
KEEP_ALIVE: list[Any] = []  # not garbage-collected before exit: see run_and_exit()


def number(kind: type, least: float, below: float = float("inf")) -> Any:
    """Return the type of an option that is a number within bounds."""

    def convert(text: str) -> Any:
        if not least <= kind(text) < below:
            upper = f" and below {below:,}" if below < float("inf") else ""
            raise argparse.ArgumentTypeError(f"must be at least {least:g}{upper}")
        return kind(text)

    return convert


COUNT, SHARE, POSITIVE = number(int, 1), number(float, 0, 1), number(float, 1e-12)
# A group's options: name, type or choices, default, help.
OPTIONS: dict[str, list[tuple[str, Any, Any, str]]] = {
    "paths": [
        ("text", str, None, "folder of .txt files (default: data/ if it has any, else sample/)"),
        ("output", str, None, "folder for all results (default: TPUCTL_OUTPUT, else output/)"),
        ("data", str, None, "folder with tokenizer/ and records/ (default: made from --text)"),
    ],
    "records of --text": [
        ("vocabulary-size", number(int, 100, MAX_VOCABULARY + 1), 3000, "word pieces"),
        ("sequence-length", number(int, 16), 64, "tokens"),
        ("held-out", SHARE, 0.01, "share of the documents used only for evaluation"),
    ],
    "model and training": [
        ("size", ("tiny", "mini", "small", "base", "large"), "tiny", "layers and width"),
        ("dropout", SHARE, None, "dropout rate (default: 0 for tiny, else 0.1)"),
        ("predictions", COUNT, None, "masked tokens per sequence (default: 15 %%, at most 20)"),
        ("batch", COUNT, 64, "sequences per step over all replicas"),
        ("accumulation", COUNT, 1, "parts of a replica's share of a batch, to save memory"),
        ("steps", COUNT, 500, "weight updates"),
        ("optimizer", ("adamw", "lamb"), "adamw", "lamb for batches above 1,024"),
        ("learning-rate", POSITIVE, 2e-3, "at its peak"),
        ("warmup-steps", number(int, 0), None, "steps to the peak (default: a tenth of --steps)"),
        ("decay", ("linear", "cosine", "constant"), "linear", "of the learning rate"),
        ("weight-decay", SHARE, 0.01, "except biases and normalizations"),
        ("clip-norm", POSITIVE, 1.0, "maximum norm of the gradient"),
        ("precision", ("auto", "float32", "bfloat16"), "auto", "auto: bfloat16 on TPU and GPU"),
        ("seed", number(int, 0, 2**31), 1, "of weights, data order, masks and dropout"),
    ],
    "the run": [
        ("device", ("auto", "tpu", "gpu", "cpu"), "auto", "auto: the best there is"),
        ("replicas", COUNT, None, "replicas on a CPU (default: the slice's, at most 2)"),
        ("xla", ("auto", "on", "off"), "auto", "auto: on GPU; a TPU always uses it"),
        ("steps-per-call", COUNT, 20, "steps per call and per log line"),
        ("checkpoint-minutes", POSITIVE, 10.0, "between checkpoints"),
        ("checkpoint-steps", number(int, 0), 0, "between checkpoints; 0: by time only"),
        ("keep-checkpoints", COUNT, 3, "newest checkpoints that are kept"),
    ],
}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the options; argparse exits with code 2 on invalid usage."""
    parser = argparse.ArgumentParser(
        prog="pretrain.py",
        description="Pretrain a BERT on text. Folders may be in a bucket, gs://…",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    flag = argparse.BooleanOptionalAction
    parser.add_argument("--only-export", action="store_true", help="export the newest checkpoint")
    parser.add_argument("--whole-words", action=flag, default=True, help="mask words, not pieces")
    for title, rows in OPTIONS.items():
        group = parser.add_argument_group(title)
        for name, kind, default, text in rows:
            how = {"choices": kind} if isinstance(kind, tuple) else {"type": kind}
            group.add_argument(f"--{name}", default=default, help=text, **how)
    options = parser.parse_args(arguments)
    if options.dropout is None:
        options.dropout = 0.0 if options.size == "tiny" else 0.1
    if options.warmup_steps is None:
        options.warmup_steps = options.steps // 10
    options.output = options.output or os.environ.get("TPUCTL_OUTPUT") or "output"
    options.is_prepared = options.data is not None
    options.data = (options.data or options.output).rstrip("/")
    if options.text is None:
        has_data = any((HERE / "data").glob("*.txt"))
        options.text = str(HERE / ("data" if has_data else "sample"))
    options.text = options.text.rstrip("/")
    return options


def check(options: argparse.Namespace, replicas: int, is_remote: bool = False) -> None:
    """Raise JobError for incompatible options; machines that are remote can read only buckets."""
    for name in ("output", "data") if is_remote else ():
        if not getattr(options, name).startswith("gs://"):
            problem = "the TPU's machines cannot read local files; use a folder in a bucket, gs://…"
            raise JobError(f"--{name} {getattr(options, name)}: {problem}", 2)
    batch, part = options.batch, options.batch // replicas
    if batch % replicas:
        near = f"{part * replicas} or {(part + 1) * replicas}" if part else f"{replicas}"
        raise JobError(f"--batch {batch} is not divisible by {replicas} replicas; try {near}", 2)
    if part % options.accumulation:
        problem = f"does not divide the {part} sequences of each of {replicas} replicas"
        raise JobError(f"--accumulation {options.accumulation} {problem}", 2)
    if options.warmup_steps >= options.steps:
        raise JobError("--warmup-steps must be fewer than --steps", 2)


def log(text: str) -> None:
    print(text, flush=True)


def elapsed(began: float) -> str:
    """Format the time since a timestamp of `time.monotonic`."""
    return f"{time.monotonic() - began:.1f} s"


def main(arguments: list[str] | None = None) -> int:
    """Run the job; return the exit code."""
    options = parse(arguments)
    log(f"BERT pretraining: starting TensorFlow (Python {platform.python_version()})")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    return report(lambda: run(options))


def run(options: argparse.Namespace) -> int:
    # TensorFlow takes seconds to import: the options are parsed and the first line printed before.
    began = time.monotonic()
    import tensorflow as tf

    from devices import choose, explain_memory
    from input_pipeline import damaged_file, default_predictions
    from machine import Stop
    from training import Trainer

    stop = Stop()
    tf.get_logger().setLevel("ERROR")
    choice = choose(options.device, options.replicas)
    check(options, choice.replicas, choice.is_remote)
    log(f"TensorFlow {tf.__version__} on {choice.description} ({elapsed(began)})")
    log(f"output: {options.output}")
    # Written first, so that an output folder that is not writable fails early.
    write_json(join(options.output, "options.json"), vars(options))
    if options.is_prepared:
        manifest = prepared(options.data)
        log(f"data: {options.data}")
    else:
        manifest = from_text(options, log)
    length, sequences = manifest["sequence_length"], manifest["counts"]["sequences"]
    options.predictions = options.predictions or default_predictions(length)
    if options.predictions > length - 2:
        raise JobError(f"--predictions {options.predictions} does not fit into {length} tokens", 2)
    if sequences < options.batch:
        problem = f"{sequences} sequences are fewer than --batch {options.batch}"
        raise JobError(f"{problem}: add text, or use a smaller batch", 2)
    times = options.steps * options.batch / sequences
    log(f"training uses each of {sequences:,} sequences {times:.1f} times")
    trainer = Trainer(options, choice, manifest, stop)
    KEEP_ALIVE.append(trainer)
    try:
        return train(trainer)
    except (tf.errors.OpError, MemoryError) as error:
        part, text = options.batch // choice.replicas, f"{type(error).__name__}: {error}"
        problem = damaged_file(error, join(options.data, "records"), manifest)
        problem = problem or explain_memory(text, options.batch, part, options.accumulation)
        if problem is None:
            raise
        raise problem from error


def train(trainer: Any) -> int:
    """Train the remaining steps, then write the result; return the exit code."""
    from machine import watch_metadata
    from result import is_complete, write_result

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
        watch_metadata(stop, checkpoints.request_save)
        summary = trainer.run()
        if stop.reason:
            log(f"{stop.reason}: saving before exit")
        log(f"checkpoint: {trainer.save()}")
        if stop.reason:
            reached = f"step {trainer.step} of {options.steps}"
            log(f"stopped at {reached}; the next run resumes from there")
            return int(stop.wait_for_exit_code(PREEMPTION_TIMEOUT))
        stop.deferred = False
        losses = f"{summary['first_loss']:.3f} -> {summary['last_loss']:.3f}"
        speed = f"{summary['tokens_per_second']:,} tokens/s"
        log(f"done: {summary['steps']} steps in {summary['seconds']:.0f} s, loss {losses}, {speed}")
    elif not options.only_export:
        log(f"already trained to step {trainer.step}; increase --steps to continue")
    if options.only_export or not is_complete(options.output, trainer.step):
        write_result(trainer, summary, log)
    return 0


def run_and_exit() -> NoReturn:
    """Run, then exit without tearing down TensorFlow, which can wait a minute for tf.data's tuner.

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
    run_and_exit()
