"""Checkpoints: everything a run needs to resume deterministically.

The checkpoint of step 40 is `model-40.index`, its `model-40.data-…` files and, written last, the
marker `model-40.json` with the files' sizes. Only checkpoints with a matching marker are restored,
so an interrupted save does no harm. The files contain the weights, the optimizer and its step
count: the position in the data, all masks and the learning rate follow from it and the seed.
"""

import argparse
import re
import time
from collections.abc import Callable

import tensorflow as tf

import files
from files import JobError, join

NAME = re.compile(r"model-(\d+)(?:\..+|_temp)")
# Files are written by the machine that runs the script, even if a TPU node computes.
OPTIONS = tf.train.CheckpointOptions(experimental_io_device="/job:localhost")
# TensorFlow's errors for damaged files, as opposed to unreachable ones.
DAMAGE_ERRORS = (tf.errors.DataLossError, tf.errors.OutOfRangeError, tf.errors.NotFoundError)


class Checkpoints:
    """The checkpoints of one run in one folder, which may be in a bucket."""

    def __init__(
        self,
        checkpoint: tf.train.Checkpoint,
        options: argparse.Namespace,
        records: str,
        log: Callable[[str], None] = lambda text: print(text, flush=True),
    ) -> None:
        """`records` is the fingerprint of the records; with some options it identifies a run."""
        self.checkpoint, self.options, self.log = checkpoint, options, log
        self.folder = join(options.output, "checkpoints")
        identity = {name: getattr(options, name) for name in ("size", "optimizer", "batch", "seed")}
        self.identity = {**identity, "records": records}
        self.complete: list[int] = []  # steps that have a marker, in order
        self.save_reason = ""
        self.restart_interval(0)

    def path(self, step: int) -> str:
        """Return the path prefix of a step's files."""
        return join(self.folder, f"model-{step}")

    def restore(self) -> str | None:
        """Restore the newest complete checkpoint; return its path, or None if there is none.

        Skipped checkpoints are logged. Raises JobError if the checkpoints are from another run.
        """
        there = files.names(self.folder)
        steps = sorted({int(match[1]) for name in there if (match := NAME.fullmatch(name))})
        while steps:
            path = self.path(steps[-1])
            if not (problem := self._problem(steps[-1], there) or self._load(path)):
                self.complete = [step for step in steps if f"model-{step}.json" in there]
                return path
            self.log(f"skipping {path}: {problem}")
            steps.pop()
        return None

    def _problem(self, step: int, there: list[str]) -> str:
        """Return why a step's files cannot be used, or ""; `there` are the names in the folder."""
        marker = files.read_json(f"{self.path(step)}.json")
        listed = marker.get("files", {})
        if not listed:
            return "incomplete"
        if missing := [name for name in listed if name not in there]:
            return f"{missing[0]} is missing"
        for name, size in files.sizes(self.folder, list(listed)).items():
            if size != listed[name]:
                return f"{name} has {size:,} of {listed[name]:,} bytes"
        before, now = marker["identity"], self.identity
        changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        if changed:
            pairs = (f"{name} {before.get(name)}, now {now.get(name)}" for name in changed)
            raise JobError(
                f"the checkpoints in {self.folder} are from another run ({', '.join(pairs)}); "
                "choose another --output",
                2,
            )
        return ""

    def _load(self, path: str) -> str:
        """Load the files into the network and the optimizer; return the problem, or ""."""
        with files.file_errors(path):
            try:
                status = self.checkpoint.read(path, OPTIONS)
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
        steps = self.options.checkpoint_steps
        if self.save_reason or (steps and step - self.saved_step >= steps):
            return True
        return time.monotonic() - self.saved_at >= 60 * self.options.checkpoint_minutes

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
            weights = self.checkpoint.model.trainable_variables
            if not all(bool(tf.reduce_all(tf.math.is_finite(weight))) for weight in weights):
                raise self.not_finite(step, "the weights are not finite")
            with files.file_errors(self.folder, is_written=True):
                written = self._write(step)
                marker = {"step": step, "identity": self.identity, "files": written}
                files.write_json(f"{self.path(step)}.json", marker)
                self.complete = sorted([*self.complete, step])[-self.options.keep_checkpoints :]
                self._remove_old()
        self.restart_interval(step)
        return self.path(step)

    def not_finite(self, step: int, problem: str) -> JobError:
        """Return the error for a run with infinite or NaN values."""
        newest = f"{self.path(self.complete[-1])} is kept" if self.complete else ""
        return JobError(
            f"NaN loss during training: {problem} at step {step}; "
            f"{newest or 'there is no checkpoint yet'}; "
            "try a lower --learning-rate or more --warmup-steps"
        )

    def _write(self, step: int) -> dict[str, int]:
        """Write a step's files; return their sizes in bytes."""
        files.make_folder(self.folder)
        self.checkpoint.write(self.path(step), OPTIONS)
        starts = (f"model-{step}.index", f"model-{step}.data-")
        listed = [name for name in files.names(self.folder) if name.startswith(starts)]
        return files.sizes(self.folder, listed)

    def _remove_old(self) -> None:
        """Remove all but the newest complete checkpoints, and files of interrupted saves."""
        for name in files.names(self.folder):
            match = NAME.fullmatch(name)
            if match and int(match[1]) not in self.complete:
                path = join(self.folder, name)
                (files.gfile().rmtree if files.gfile().isdir(path) else files.gfile().remove)(path)
