"""Checkpoints: what a run needs to go on as if nothing had happened."""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf

import files
from errors import JobError

__all__ = ["Checkpoints"]


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
    ) -> None:
        """`of` tells one run from another; `minutes` and `steps` say how often to save."""
        self.folder, self.of, self.minutes, self.steps = folder, of, minutes, steps
        self.manager = tf.train.CheckpointManager(
            checkpoint, folder, max_to_keep=keep, checkpoint_name="model"
        )
        self.saved_at, self.saved_step = time.monotonic(), 0

    def restore(self) -> str | None:
        """Take up the newest checkpoint; return its path, or None when there is none yet.

        Raises JobError when the checkpoints belong to another model or other records.
        """
        path = files.join(self.folder, "run.json")
        found = files.read_json(path)
        if self.manager.latest_checkpoint and found != self.of:
            changed = ", ".join(name for name in self.of if found.get(name) != self.of[name])
            raise JobError(
                f"the checkpoints in {self.folder} are of another run (differs: {changed}); "
                "choose another --output",
                2,
            )
        if self.manager.latest_checkpoint is None:
            files.write_json(path, self.of)
            return None
        status = self.manager.checkpoint.restore(self.manager.latest_checkpoint)
        status.assert_existing_objects_matched()
        return str(self.manager.latest_checkpoint)

    def begin(self, step: int) -> None:
        """Count the time and the steps to the next checkpoint from here."""
        self.saved_at, self.saved_step = time.monotonic(), step

    def are_due(self, step: int) -> bool:
        """Say whether it is time to save again."""
        if self.steps and step - self.saved_step >= self.steps:
            return True
        return time.monotonic() - self.saved_at >= 60 * self.minutes

    def save(self, step: int) -> str:
        """Write a checkpoint named by its step, unless this step has one."""
        path = files.join(self.folder, f"model-{step}")
        if self.manager.latest_checkpoint != path:
            with files.writing(self.folder):
                self.manager.save(checkpoint_number=step)
        self.begin(step)
        return path
