"""The log's lines as scalars for TensorBoard, each step once however often a run is resumed."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

import tensorflow as tf

import files

__all__ = ["Summaries"]

BUCKET_SECONDS = 30.0  # a flush to a bucket uploads the whole file again
Event = tf.compat.v1.Event


class Summaries:
    """Writes event files into a folder, which may be in a bucket.

    The files are written without TensorFlow's summary operations: those would run on a TPU node
    where one is used, and the folder may be on this machine.
    """

    def __init__(self, folder: str, step: int) -> None:
        """Go on after `step`: what an earlier run told of later steps is removed."""
        self.every = BUCKET_SECONDS if folder.startswith("gs://") else 0.0
        tf.io.gfile.makedirs(folder)
        for path in tf.io.gfile.glob(files.join(folder, "events.out.tfevents.*")):
            forget_after(path, step)
        now = time.time()
        name = f"events.out.tfevents.{now:.6f}.{socket.gethostname()}.{os.getpid()}"
        self.writer = tf.io.TFRecordWriter(files.join(folder, name))
        self.flushed = time.monotonic()
        self._write(Event(wall_time=now, file_version="brain.Event:2"))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Write the scalars of a step."""
        summary = tf.compat.v1.Summary(
            value=[
                tf.compat.v1.Summary.Value(tag=name, simple_value=value)
                for name, value in values.items()
            ]
        )
        self._write(Event(wall_time=time.time(), step=step, summary=summary))
        if time.monotonic() - self.flushed >= self.every:
            self.flush()

    def flush(self) -> None:
        """Make sure that all that was added can be read."""
        self.writer.flush()
        self.flushed = time.monotonic()

    def close(self) -> None:
        """Write what is left; nothing can be added afterwards."""
        self.writer.close()

    def _write(self, event: Event) -> None:
        self.writer.write(event.SerializeToString())


def forget_after(path: str, step: int) -> None:
    """Take the events after a step, and a half-written end, out of a file."""
    kept, whole = [], True
    try:
        # Reads on this machine too, which a dataset would not do where a TPU node is used.
        for event in tf.compat.v1.train.summary_iterator(path):
            if event.step <= step:
                kept.append(event.SerializeToString())
            else:
                whole = False
    except tf.errors.DataLossError:
        whole = False
    if whole:
        return
    if len(kept) <= 1:  # nothing but the version
        tf.io.gfile.remove(path)
        return
    with tf.io.TFRecordWriter(f"{path}.new") as writer:
        for record in kept:
            writer.write(record)
    tf.io.gfile.rename(f"{path}.new", path, overwrite=True)
