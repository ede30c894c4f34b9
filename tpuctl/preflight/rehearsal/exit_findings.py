"""How the script came to its end in a rehearsal, and what that says of the real run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from tpuctl.preflight.rehearsal.findings import Finding
from tpuctl.preflight.rehearsal.observations import Failure, Read, Refused, ShimFailed, Started
from tpuctl.preflight.rehearsal.passes import Pass

__all__ = ["missing_objects", "of_first", "of_second", "shortened", "used_tensorflow"]

TOPIC = "script"
OBJECT = re.compile(r"gs://[a-z0-9][\w.-]+(?:/[^\s'\"`,;)]*)?")
# How TensorFlow, Google's client and gcsfs say that an object or a bucket is not there.
ABSENT = re.compile(
    r"not ?found|no such (?:file|object)|does not exist|NoSuchKey|404|FileNotFound"
    r"|matched no files|No files match",
    re.IGNORECASE,
)
ABSENCES = ("NotFoundError", "FileNotFoundError", "NotFound")  # of TensorFlow, Python, Google
KILLED = 137
LONGEST = 240  # letters of one message
SAMPLE = "Put a sample there, a folder on this machine:\n    tpuctl rehearse --sample FOLDER={}"


def used_tensorflow(one: Pass) -> bool:
    return any(each.tensorflow for each in one.of(Started)) or bool(one.steps)


def of_first(one: Pass, asked: int) -> Iterator[Finding]:
    """What is to be said of the end itself; a refusal of XLA is told where that is told."""
    yield from _shim(one)
    if one.has_failed:
        if not _is_of_xla(one):
            yield _failed(one)
    elif one.stopped == "timeout":
        yield _timed_out(one, asked)
    elif one.stopped:
        seen = f"after {_count(len(one.steps), 'step')}"
        yield Finding(TOPIC, "unknown", f"interrupted {seen}: what follows is from these")
    elif not used_tensorflow(one):
        others = sorted({name for each in one.of(Started) for name in each.others})
        instead = f" ({', '.join(others)} was)" if others else ""
        yield Finding(
            TOPIC,
            "unknown",
            f"ran to its end, and TensorFlow was never imported{instead}: no step can be seen",
        )
    elif not one.steps:
        yield Finding(
            TOPIC,
            "unknown",
            "ran to its end without a training step that could be seen",
            hint="Seen are fit, train_on_batch, strategy.run, and optimizers' apply_gradients "
            "in a tf.function.",
        )
    elif len(one.steps) < asked:
        yield Finding(TOPIC, "fine", f"ran to its end in {_count(len(one.steps), 'step')}")
    else:
        yield _stopped(one)


def of_second(one: Pass, first: Pass) -> Iterator[Finding]:
    """Of the run on several replicas, where the first run went well."""
    if one.has_failed:
        failed = _failed(one)
        if failed.topic == "observing":  # the first run says something all the same
            yield replace(failed, severity="unknown")
            return
        where = f"on {one.replicas} replicas" if one.replicas > 1 else "when started again"
        yield Finding(
            "replicas",
            failed.severity,
            f"fails {where}: {failed.message}",
            failed.detail,
            failed.hint,
            failed.where,
        )
    elif one.stopped == "timeout" and not one.steps and first.steps:
        yield Finding("replicas", "unknown", "no step within the time on several replicas")


def missing_objects(one: Pass) -> list[str]:
    """The gs:// paths for want of which the script failed.

    What it looked for in vain and did without, as a first run does for a checkpoint, is none.
    """
    ended = one.ended
    if ended is None or ended.error is None or not ABSENT.search(_all(ended.error)):
        return []
    named = OBJECT.findall(ended.error.message)
    if not named and ended.error.type in ABSENCES:
        named = [each.path for each in one.of(Read) if each.missing][-1:]
    paths = dict.fromkeys(path.rstrip(".:") for path in named)
    return [path for path in paths if path.startswith("gs://")]


def _failed(one: Pass) -> Finding:
    error = one.ended.error if one.ended is not None else None
    missing = missing_objects(one)
    tail = "\n".join(one.tail)
    if missing:
        return Finding(
            "data",
            "error",
            f"{missing[0]} is not in the local cloud, which serves gs:// here",
            tail,
            SAMPLE.format(_folder(missing[0])),
            error.where if error is not None else None,
        )
    if error is not None and _is_ours(one):
        message = f"what observes the script failed, which is a bug in tpuctl: {_first_line(error)}"
        return Finding("observing", "error", message, tail, "Please report it with the log.")
    if error is not None:
        return Finding(TOPIC, "error", _first_line(error), tail, where=error.where)
    if one.exit_code == KILLED:
        message = "was killed from outside: this machine's memory may not be enough for it"
        return Finding(TOPIC, "unknown", message, tail)
    return Finding(TOPIC, "error", f"ended with exit code {one.exit_code}", tail)


def _folder(path: str) -> str:
    """What a sample is put into: the object's folder, where it is one object."""
    before, slash, name = path.rstrip("/").rpartition("/")
    return before if slash and "." in name and not before.endswith("/") else path


def _stopped(one: Pass) -> Finding:
    """After the steps asked for: as a machine that is taken away ends it."""
    after = f"stopped after {len(one.steps)} steps"
    ended = one.ended
    if ended is not None and ended.error is not None:
        message = f"{after}, it fails while it ends: {_first_line(ended.error)}"
        return Finding(TOPIC, "risk", message, "\n".join(one.tail), where=ended.error.where)
    if ended is not None and ended.hard:
        message = f"{after}, it went on after SIGTERM: a machine that is taken away waits 30 s"
        return Finding(TOPIC, "risk", message)
    return Finding(TOPIC, "fine", f"ran, and was {after}")


def _timed_out(one: Pass, asked: int) -> Finding:
    if one.steps:
        message = f"took {len(one.steps)} of {asked} steps within {one.seconds:.0f} s"
        return Finding(TOPIC, "fine", message)
    return Finding(
        TOPIC,
        "error",
        f"took no training step within {one.seconds:.0f} s",
        "\n".join(one.tail),
        "Where it needs longer, say so with\n    tpuctl rehearse --timeout 1h",
    )


def _is_ours(one: Pass) -> bool:
    """Whether the innermost frame of the traceback is the observer's own."""
    return "/preflight/shim/" in one.raised_in


def _is_of_xla(one: Pass) -> bool:
    return bool(one.of(Refused))


def _shim(one: Pass) -> Iterator[Finding]:
    failed = one.of(ShimFailed)
    if failed:
        yield Finding(
            "observing",
            "unknown",
            "not everything could be observed: this is a gap of tpuctl, not of the script",
            "\n".join(dict.fromkeys(each.what for each in failed)),
        )


def _first_line(error: Failure) -> str:
    lines = [line.strip() for line in error.message.splitlines() if line.strip()]
    if not lines:
        return error.type
    return f"{error.type}: {shortened(lines[0])}"


def shortened(text: str) -> str:
    """No longer than a reader takes in at once."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _all(error: Failure) -> str:
    return f"{error.type} {error.message}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
