"""Checkpoints: what a run needs to go on as if nothing had happened.

A checkpoint of step 40 is `model-40.index`, its `model-40.data-…` files and, written last,
`model-40.json`, the marker: it names the files with their sizes. Only what has a marker that is
true is ever taken up, so a save that was cut short does no harm, whatever cut it.

Weights, the optimizer and its count of steps are in the files. The position in the data, the
masks of dropout and the learning rate follow from that count and the seed (`training.reading`,
`training.dropout`, `training.schedule`), so nothing else need be kept.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tensorflow as tf

import files
from errors import JobError

__all__ = ["Checkpoints"]

NAME = re.compile(r"model-(\d+)(?:\..+|(_temp))")
# Files are written here, by the machine that runs the script, also when a TPU node computes.
HERE = "/job:localhost"
# What TensorFlow raises for files that are not what they were, as opposed to out of reach.
DAMAGE = (tf.errors.DataLossError, tf.errors.OutOfRangeError, tf.errors.NotFoundError)


class Checkpoints:
    """The checkpoints of one run in one folder, which may be in a bucket."""

    def __init__(
        self,
        folder: str,
        checkpoint: tf.train.Checkpoint,
        *,
        of: dict[str, Any],
        keep: int,
        minutes: float,
        steps: int,
        say: Callable[[str], None] = lambda text: print(text, flush=True),
    ) -> None:
        """`of` tells one run from another; `minutes` and `steps` say how often to save."""
        self.folder, self.checkpoint, self.of = folder, checkpoint, of
        self.keep, self.minutes, self.steps, self.say = keep, minutes, steps, say
        self.complete: list[int] = []  # steps that have a marker, in order
        self.asked = ""
        self.saved_at, self.saved_step = time.monotonic(), 0

    @property
    def newest(self) -> str | None:
        """The path of the newest complete checkpoint, without the files' endings."""
        return self.path(self.complete[-1]) if self.complete else None

    def path(self, step: int) -> str:
        """Return what the names of a step's files begin with."""
        return files.join(self.folder, f"model-{step}")

    def restore(self) -> str | None:
        """Take up the newest complete checkpoint; return its path, or None when there is none.

        What is passed over is said. Raises JobError when the checkpoints are of another run.
        """
        names = self._names()
        steps = sorted({int(match[1]) for name in names if (match := NAME.fullmatch(name))})
        while steps:
            path = self.path(steps[-1])
            if not (problem := self._problem(steps[-1], names) or self._take_up(path)):
                self.complete = [step for step in steps if f"model-{step}.json" in names]
                return path
            self.say(f"passing over {path}: {problem}")
            steps.pop()
        return None

    def _problem(self, step: int, names: list[str]) -> str:
        """Return why a step's files cannot be used, or nothing; `names` are in the folder."""
        marker = files.read_json(f"{self.path(step)}.json")
        if not marker.get("files"):
            return "it was not written to its end"
        for name, size in marker["files"].items():
            if name not in names:
                return f"{name} is missing"
            found = files.stamp(files.join(self.folder, name))[0]
            if found != size:
                return f"{name} has {found:,} of {size:,} bytes"
        if changed := differences(marker.get("of", {}), self.of):
            raise JobError(
                f"the checkpoints in {self.folder} are of another run ({changed}); "
                "choose another --output",
                2,
            )
        return ""

    def _take_up(self, path: str) -> str:
        """Read the files into the network and the optimizer; return what is wrong with them."""
        options = tf.train.CheckpointOptions(experimental_io_device=HERE)
        with files.reading(path):
            try:
                status = self.checkpoint.read(path, options)
            except DAMAGE as error:
                return str(error.message).splitlines()[0]
        status.assert_existing_objects_matched()
        return ""

    def begin(self, step: int) -> None:
        """Count the time and the steps to the next checkpoint from here."""
        self.saved_at, self.saved_step = time.monotonic(), step

    def ask(self, why: str) -> None:
        """Have one saved as soon as the loop comes by; may be called from any thread."""
        self.asked = why

    def are_due(self, step: int) -> bool:
        """Say whether it is time to save again."""
        if self.asked or (self.steps and step - self.saved_step >= self.steps):
            return True
        return time.monotonic() - self.saved_at >= 60 * self.minutes

    def save(self, step: int) -> str:
        """Write a checkpoint named by its step, unless this step has one; return its path.

        Then older ones go, but for the newest few. Raises JobError, with nothing written, when
        the weights are no longer numbers.
        """
        if self.asked:
            self.say(f"{self.asked}: saving at step {step}")
            self.asked = ""
        if step not in self.complete:
            # The loss of the last step was computed before its update: that may have spoilt them.
            if not are_finite(self.checkpoint.model.trainable_variables):
                raise self.not_finite(step, "the weights are no numbers")
            with files.writing(self.folder):
                sizes = self._write(step)
                marker = {"step": step, "of": self.of, "files": sizes}
                files.write_json(f"{self.path(step)}.json", marker)
                self.complete.append(step)
                self._remove_old()
        self.begin(step)
        return self.path(step)

    def not_finite(self, step: int, what: str) -> JobError:
        """Return the error that ends a run whose numbers are none any more."""
        kept = f"{self.newest} is kept" if self.newest else "there is no checkpoint yet"
        return JobError(
            f"NaN loss during training: {what} at step {step}; {kept}; "
            "try a lower --learning-rate or more --warmup-steps"
        )

    def _write(self, step: int) -> dict[str, int]:
        """Write a step's files; return their sizes in bytes.

        For a bucket they are written on this machine first: TensorFlow would write parts to the
        bucket, put them together there and take them away, a request each.
        """
        options = tf.train.CheckpointOptions(experimental_io_device=HERE)
        with ExitStack() as stack:
            here = self.folder
            if files.is_remote(self.folder):
                here = stack.enter_context(tempfile.TemporaryDirectory(prefix="checkpoint-"))
            Path(here).mkdir(parents=True, exist_ok=True)
            self.checkpoint.write(files.join(here, f"model-{step}"), options)
            written = [
                path for path in Path(here).glob(f"model-{step}.*") if path.suffix != ".json"
            ]
            if here != self.folder:
                for path in written:
                    files.copy(str(path), files.join(self.folder, path.name))
            return {path.name: path.stat().st_size for path in written}

    def _remove_old(self) -> None:
        """Remove all but the newest complete checkpoints, and what is left of cut-off ones."""
        self.complete = sorted(self.complete)[-self.keep :]
        for name in self._names():
            match = NAME.fullmatch(name)
            if not match or int(match[1]) in self.complete:
                continue
            if match[2]:
                shutil.rmtree(files.join(self.folder, name))
            else:
                files.remove(files.join(self.folder, name))

    def _names(self) -> list[str]:
        """Return the names of what is in the folder, with folders that a cut-off save has left."""
        if files.is_remote(self.folder):
            return files.names(self.folder)
        return [path.name for path in Path(self.folder).glob("model-*")]


def differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Say what has changed, with both values; nothing when nothing has."""
    names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    return ", ".join(f"{name} {before.get(name)}, now {now.get(name)}" for name in names)


def are_finite(variables: list[Any]) -> bool:
    """Say whether all values are numbers: neither infinite nor NaN."""
    return all(bool(tf.reduce_all(tf.math.is_finite(variable))) for variable in variables)
