"""Writes the log lines as TensorBoard scalars; each step once, even if a run is resumed."""

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

    The files are written without TensorFlow's summary operations: those would run on the TPU node,
    while the folder may be on this machine.
    """

    def __init__(self, folder: str, step: int) -> None:
        """Continue after `step`: events of later steps from an earlier run are removed."""
        self.flush_interval = BUCKET_SECONDS if folder.startswith("gs://") else 0.0
        tf.io.gfile.makedirs(folder)
        for path in tf.io.gfile.glob(files.join(folder, "events.out.tfevents.*")):
            truncate_after(path, step)
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
        if time.monotonic() - self.flushed >= self.flush_interval:
            self.flush()

    def flush(self) -> None:
        """Make all added scalars readable."""
        self.writer.flush()
        self.flushed = time.monotonic()

    def close(self) -> None:
        """Flush and close the file."""
        self.writer.close()

    def _write(self, event: Event) -> None:
        self.writer.write(event.SerializeToString())


def truncate_after(path: str, step: int) -> None:
    """Remove the events after a step, and a truncated end, from a file."""
    records, is_complete = [], True
    try:
        # Reads on this machine, unlike a dataset when a TPU node is used.
        for event in tf.compat.v1.train.summary_iterator(path):
            if event.step <= step:
                records.append(event.SerializeToString())
            else:
                is_complete = False
    except tf.errors.DataLossError:
        is_complete = False
    if is_complete:
        return
    if len(records) <= 1:  # only the version
        tf.io.gfile.remove(path)
        return
    with tf.io.TFRecordWriter(f"{path}.new") as writer:
        for record in records:
            writer.write(record)
    tf.io.gfile.rename(f"{path}.new", path, overwrite=True)
