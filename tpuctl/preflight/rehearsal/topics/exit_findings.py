"""Findings about the exit of a rehearsed script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from tpuctl.preflight.rehearsal.findings import Finding
from tpuctl.preflight.rehearsal.observations import (
    Distributed,
    Failure,
    Read,
    Refused,
    ShimFailed,
    Started,
)
from tpuctl.preflight.rehearsal.passes import Pass
from tpuctl.units import counted

TOPIC = "script"
OBJECT = re.compile(r"gs://[a-z0-9][\w.-]+(?:/[^\s'\"`,;)]*)?")
# Messages of TensorFlow, Google's client and gcsfs about a missing object or bucket.
NOT_FOUND = re.compile(
    r"not ?found|no such (?:file|object)|does not exist|NoSuchKey|404|FileNotFound"
    r"|matched no files|No files match",
    re.IGNORECASE,
)
NOT_FOUND_TYPES = ("NotFoundError", "FileNotFoundError", "NotFound")  # TensorFlow, Python, Google
TENSORFLOW_STEPS = (
    "Only fit, train_on_batch, strategy.run, and apply_gradients in a tf.function are observed."
)
JAX_STEPS = (
    "Only gradients, and calls of functions compiled by jax.jit or jax.pmap are observed, in the "
    "main thread. Functions compiled ahead of time, with lower(…).compile(), are not."
)
TORCH_STEPS = "Only calls of an optimizer of torch.optim are observed, in the main thread."
STEPS_HINTS = {"tensorflow": TENSORFLOW_STEPS, "jax": JAX_STEPS, "torch": TORCH_STEPS}
JAX_SIGTERM_HINT = (
    "jax.distributed.initialize() handles SIGTERM itself. Save and exit when\n"
    "    multihost_utils.reached_preemption_sync_point(step)\n"
    "is true, or install your own handler after initialize()."
)
# By what a message says.
HINTS = {
    "Array has been deleted": "It was donated to a compiled function (donate_argnums), which "
    "overwrites it: use what the function returned.",
    "unbound axis name": "Call it within shard_map with a mesh that has this axis, or within a "
    "pmap or vmap with this axis_name.",
}
SIGKILL_CODE = 137
USER_CODE = re.compile(r"\A(?:\w+: )?in user code:\n[\s\S]*\n\n(?=\s*\S)")
# What AutoGraph raises instead of an exception whose type takes other arguments.
CONVERTED_TYPES = ("StagingError",)
MAX_MESSAGE_LENGTH = 240
SAMPLE_HINT = "Pass a sample from a local folder:\n    tpuctl rehearse --sample FOLDER={} SCRIPT"


def was_observed(run: Pass) -> bool:
    """Whether the script uses TensorFlow, JAX or PyTorch."""
    imported = any(start.tensorflow or start.jax or start.torch for start in run.of(Started))
    return imported or bool(run.steps)


def first_pass(run: Pass, requested_steps: int) -> Iterator[Finding]:
    """Findings about the exit of the first pass; `compile_findings` reports rejections by XLA."""
    yield from _shim_failures(run)
    if run.has_failed:
        if not run.of(Refused):
            yield failure(run)
    elif run.stopped == "timeout":
        yield _timeout(run, requested_steps)
    elif run.stopped:
        after = f"after {counted(len(run.steps), 'step')}"
        yield Finding(
            TOPIC, "unknown", f"interrupted {after}: the findings are based on these steps"
        )
    elif not was_observed(run):
        yield Finding(
            TOPIC,
            "unknown",
            "finished without importing TensorFlow, JAX or PyTorch: no steps were observed",
        )
    elif not run.steps:
        yield Finding(
            TOPIC,
            "unknown",
            "finished without an observable training step",
            hint=STEPS_HINTS[run.framework],
        )
    elif len(run.steps) < requested_steps:
        yield Finding(TOPIC, "fine", f"finished after {counted(len(run.steps), 'step')}")
    else:
        yield _stop(run)


def second_pass(run: Pass, first: Pass) -> Iterator[Finding]:
    """Findings about the exit of the second pass, on several replicas, if the first succeeded."""
    if run.has_failed:
        failed = failure(run)
        if failed.topic == "observing":  # the first pass still has results
            yield replace(failed, severity="unknown")
            return
        where = f"on {run.replicas} replicas" if run.replicas > 1 else "when started again"
        yield Finding(
            "replicas",
            failed.severity,
            f"fails {where}: {failed.message}",
            failed.detail,
            failed.hint,
            failed.where,
        )
    elif run.stopped == "timeout" and not run.steps and first.steps:
        yield Finding("replicas", "unknown", "no step on several replicas before the timeout")


def missing_objects(run: Pass) -> list[str]:
    """The missing gs:// paths that made the script fail.

    Missing paths that it tolerates, such as a checkpoint at the first start, are not included.
    """
    ended = run.ended
    if ended is None or ended.error is None or not NOT_FOUND.search(_full_text(ended.error)):
        return []
    paths_in_message = OBJECT.findall(ended.error.message)
    if not paths_in_message and ended.error.type in NOT_FOUND_TYPES:
        paths_in_message = [read.path for read in run.of(Read) if read.missing][-1:]
    paths = dict.fromkeys(path.rstrip(".:") for path in paths_in_message)
    return [path for path in paths if path.startswith("gs://")]


def failure(run: Pass) -> Finding:
    """Why a script failed."""
    error = run.ended.error if run.ended is not None else None
    missing = missing_objects(run)
    tail = "\n".join(run.tail)
    if missing:
        return Finding(
            "data",
            "error",
            f"{missing[0]} does not exist in the local cloud, which serves gs:// in a rehearsal",
            tail,
            SAMPLE_HINT.format(_sample_folder(missing[0])),
            error.where if error is not None else None,
        )
    if error is not None and error.is_tpuctls:
        message = (
            f"the observer of the script failed, which is a bug in tpuctl: {_first_line(error)}"
        )
        return Finding("observing", "error", message, tail, "Report it with the log.")
    if run.left_out is not None:
        file = run.left_out
        message = f"{file.name} is not uploaded: {file.rule}"
        where = error.where if error is not None else None
        return Finding("files", "error", message, tail, file.remedy, where)
    if error is not None:
        hint = next((hint for text, hint in HINTS.items() if text in error.message), "")
        return Finding(TOPIC, "error", _first_line(error), tail, hint, error.where)
    if run.exit_code == SIGKILL_CODE:
        message = "was killed: this machine may have run out of memory"
        return Finding(TOPIC, "unknown", message, tail)
    return Finding(TOPIC, "error", f"failed with exit code {run.exit_code}", tail)


def _sample_folder(path: str) -> str:
    """The target path of a sample: for an object, its folder."""
    before, slash, name = path.rstrip("/").rpartition("/")
    return before if slash and "." in name and not before.endswith("/") else path


def _stop(run: Pass) -> Finding:
    """How the script reacted to SIGTERM after the requested steps, as in a preemption."""
    after = f"stopped after {len(run.steps)} steps"
    ended = run.ended
    if ended is not None and ended.error is not None:
        message = f"{after}, it failed while exiting: {_first_line(ended.error)}"
        return Finding(TOPIC, "risk", message, "\n".join(run.tail), where=ended.error.where)
    if ended is not None and ended.grace_expired:
        message = (
            f"{after}, it kept running after SIGTERM: a preempted machine is stopped after 30 s"
        )
        hint = JAX_SIGTERM_HINT if run.jax and run.of(Distributed) else ""
        return Finding(TOPIC, "risk", message, hint=hint)
    return Finding(TOPIC, "fine", f"ran and was {after}")


def _timeout(run: Pass, requested_steps: int) -> Finding:
    if run.steps:
        message = f"completed {len(run.steps)} of {requested_steps} steps in {run.seconds:.0f} s"
        return Finding(TOPIC, "fine", message)
    return Finding(
        TOPIC,
        "error",
        f"completed no training step within {run.seconds:.0f} s",
        "\n".join(run.tail),
        "To allow more time:\n    tpuctl rehearse --timeout 1h SCRIPT",
    )


def _shim_failures(run: Pass) -> Iterator[Finding]:
    failed = run.of(ShimFailed)
    if failed:
        yield Finding(
            "observing",
            "unknown",
            "some observations failed: this is a limitation of tpuctl, not of the script",
            "\n".join(dict.fromkeys(failure.action for failure in failed)),
        )


def _first_line(error: Failure) -> str:
    lines = message_lines(error.message)
    if not lines:
        return error.type
    if error.type in CONVERTED_TYPES:  # the message names its type
        return shorten(lines[0])
    first = lines[0].removeprefix(f"{error.type}: ")
    return f"{error.type}: {shorten(first)}"


def message_lines(message: str) -> list[str]:
    """The lines of an exception's message, without the calls that AutoGraph puts before them."""
    text = USER_CODE.sub("", message.rstrip())
    return [line.strip() for line in text.splitlines() if line.strip()]


def shorten(text: str) -> str:
    """Truncate a text to `MAX_MESSAGE_LENGTH`."""
    return text if len(text) <= MAX_MESSAGE_LENGTH else f"{text[: MAX_MESSAGE_LENGTH - 1]}…"


def _full_text(error: Failure) -> str:
    return f"{error.type} {error.message}"
