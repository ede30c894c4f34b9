"""Checkpoints: everything a run needs to resume deterministically.

The checkpoint of step 40 is `model-40.index`, its `model-40.data-…` files and, written last, the
marker `model-40.json` with the files' sizes. Only checkpoints with a matching marker are restored,
so an interrupted save does no harm.

The files contain the weights, the optimizer and its step count. The position in the data, the
dropout masks and the learning rate follow from that count and the seed
(`training.input_pipeline`, `training.dropout`, `training.schedule`).
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
# Files are written by the machine that runs the script, even if a TPU node computes.
HERE = "/job:localhost"
# TensorFlow's errors for damaged files, as opposed to unreachable ones.
DAMAGE_ERRORS = (tf.errors.DataLossError, tf.errors.OutOfRangeError, tf.errors.NotFoundError)


class Checkpoints:
    """The checkpoints of one run in one folder, which may be in a bucket."""

    def __init__(
        self,
        folder: str,
        checkpoint: tf.train.Checkpoint,
        *,
        identity: dict[str, Any],
        keep: int,
        minutes: float,
        steps: int,
        log: Callable[[str], None] = lambda text: print(text, flush=True),
    ) -> None:
        """`identity` identifies the run; `minutes` and `steps` are the save intervals."""
        self.folder, self.checkpoint, self.identity = folder, checkpoint, identity
        self.keep, self.minutes, self.steps, self.log = keep, minutes, steps, log
        self.complete: list[int] = []  # steps that have a marker, in order
        self.save_reason = ""
        self.saved_at, self.saved_step = time.monotonic(), 0

    @property
    def newest(self) -> str | None:
        """The path of the newest complete checkpoint, without file extensions."""
        return self.path(self.complete[-1]) if self.complete else None

    def path(self, step: int) -> str:
        """Return the path prefix of a step's files."""
        return files.join(self.folder, f"model-{step}")

    def restore(self) -> str | None:
        """Restore the newest complete checkpoint; return its path, or None if there is none.

        Skipped checkpoints are logged. Raises JobError if the checkpoints are from another run.
        """
        names = self._names()
        steps = sorted({int(match[1]) for name in names if (match := NAME.fullmatch(name))})
        while steps:
            path = self.path(steps[-1])
            if not (problem := self._problem(steps[-1], names) or self._load(path)):
                self.complete = [step for step in steps if f"model-{step}.json" in names]
                return path
            self.log(f"skipping {path}: {problem}")
            steps.pop()
        return None

    def _problem(self, step: int, names: list[str]) -> str:
        """Return why a step's files cannot be used, or ""; `names` are the folder's files."""
        marker = files.read_json(f"{self.path(step)}.json")
        if not marker.get("files"):
            return "incomplete"
        for name, size in marker["files"].items():
            if name not in names:
                return f"{name} is missing"
            actual_size = files.size_and_mtime(files.join(self.folder, name))[0]
            if actual_size != size:
                return f"{name} has {actual_size:,} of {size:,} bytes"
        if changed := differences(marker.get("identity", {}), self.identity):
            raise JobError(
                f"the checkpoints in {self.folder} are from another run ({changed}); "
                "choose another --output",
                2,
            )
        return ""

    def _load(self, path: str) -> str:
        """Load the files into the network and the optimizer; return the problem, or ""."""
        options = tf.train.CheckpointOptions(experimental_io_device=HERE)
        with files.read_errors(path):
            try:
                status = self.checkpoint.read(path, options)
            except DAMAGE_ERRORS as error:
                return str(error.message).splitlines()[0]
        status.assert_existing_objects_matched()
        return ""

    def restart_interval(self, step: int) -> None:
        """Restart the interval to the next checkpoint."""
        self.saved_at, self.saved_step = time.monotonic(), step

    def request_save(self, reason: str) -> None:
        """Request a save at the next opportunity; thread-safe."""
        self.save_reason = reason

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is due."""
        if self.save_reason or (self.steps and step - self.saved_step >= self.steps):
            return True
        return time.monotonic() - self.saved_at >= 60 * self.minutes

    def save(self, step: int) -> str:
        """Write a checkpoint of a step, unless it exists; return its path.

        Then old checkpoints are removed. Raises JobError, with nothing written, if the weights
        are not finite.
        """
        if self.save_reason:
            self.log(f"{self.save_reason}: saving at step {step}")
            self.save_reason = ""
        if step not in self.complete:
            # The last loss was computed before its update, which may have made them non-finite.
            if not are_finite(self.checkpoint.model.trainable_variables):
                raise self.not_finite(step, "the weights are not finite")
            with files.write_errors(self.folder):
                sizes = self._write(step)
                marker = {"step": step, "identity": self.identity, "files": sizes}
                files.write_json(f"{self.path(step)}.json", marker)
                self.complete.append(step)
                self._remove_old()
        self.restart_interval(step)
        return self.path(step)

    def not_finite(self, step: int, problem: str) -> JobError:
        """Return the error for a run with infinite or NaN values."""
        state = f"{self.newest} is kept" if self.newest else "there is no checkpoint yet"
        return JobError(
            f"NaN loss during training: {problem} at step {step}; {state}; "
            "try a lower --learning-rate or more --warmup-steps"
        )

    def _write(self, step: int) -> dict[str, int]:
        """Write a step's files; return their sizes in bytes.

        For a bucket they are written locally first: TensorFlow would write parts to the bucket,
        merge and delete them there, with a request each.
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
        """Remove all but the newest complete checkpoints, and files of interrupted saves."""
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
        """Return the names in the folder, including folders of interrupted saves."""
        if files.is_remote(self.folder):
            return files.names(self.folder)
        return [path.name for path in Path(self.folder).glob("model-*")]


def differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Describe the changed values, or return ""."""
    names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    return ", ".join(f"{name} {before.get(name)}, now {now.get(name)}" for name in names)


def are_finite(variables: list[Any]) -> bool:
    """Whether all values are finite: neither infinite nor NaN."""
    return all(bool(tf.reduce_all(tf.math.is_finite(variable))) for variable in variables)
