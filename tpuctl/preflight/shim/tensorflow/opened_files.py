"""Observes files that a script opens through TensorFlow for reading or writing."""

from __future__ import annotations

import functools
import importlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from ....simulated_tpu.script_calls import call_script
from ..observation.context import Rehearsal

DATASETS = ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset")
MAX_LOOKUPS = 16  # objects in buckets whose existence is checked; each costs a request
SLOW_LOOKUP_SECONDS = 5.0  # after a slower response, no more objects are checked
MAX_PATHS = 2000


def install(rehearsal: Rehearsal, tensorflow: Any) -> None:
    """Observe opening, copying and renaming of files, and datasets that read files."""
    files = Files(rehearsal, tensorflow)
    attempt = rehearsal.writer.attempt
    attempt("files", files.watch_opening)
    attempt("copies of files", files.watch_copies)
    for name in DATASETS:
        attempt("datasets of files", files.watch_dataset, getattr(tensorflow.data, name))


class Files:
    """Records each path at most once for reading and once for writing."""

    def __init__(self, rehearsal: Rehearsal, tensorflow: Any) -> None:
        self.writer, self.tensorflow = rehearsal.writer, tensorflow
        self.recorded: set[tuple[str, str]] = set()
        self.lookups = 0

    def watch_opening(self) -> None:
        module = importlib.import_module("tensorflow.python.lib.io.file_io")

        def record_open(file: Any, name: Any, mode: Any = "r", *_: Any, **__: Any) -> None:
            self.record("read" if str(mode).startswith("r") else "wrote", name)

        self._call_before(module.FileIO, "__init__", record_open)
        self._call_before(self.tensorflow.io.TFRecordWriter, "__init__", self._record_write)

    def watch_copies(self) -> None:
        gfile = self.tensorflow.io.gfile
        for name in ("copy", "rename"):
            self._call_before(gfile, name, self._record_write)

    def watch_dataset(self, kind: Any) -> None:
        def before_init(dataset: Any, filenames: Any = None, *_: Any, **__: Any) -> None:
            for path in self._paths(filenames):
                self.record("read", path, check_exists=True)

        self._call_before(kind, "__init__", before_init)

    def record(self, kind: str, path: Any, check_exists: bool = False) -> None:
        path = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        if not path or (kind, path) in self.recorded or len(self.recorded) >= MAX_PATHS:
            return
        self.recorded.add((kind, path))
        missing = {}
        if check_exists and path.startswith("gs://") and self.lookups < MAX_LOOKUPS:
            self.lookups += 1
            began = time.monotonic()
            missing = {"missing": not self.tensorflow.io.gfile.exists(path)}
            if time.monotonic() - began > SLOW_LOOKUP_SECONDS:
                self.lookups = MAX_LOOKUPS
        self.writer.write(kind, path=path, **missing)

    def _record_write(self, first: Any, second: Any = None, *_: Any, **keywords: Any) -> None:
        """Record the second argument: the path of a writer, or the target of a copy."""
        self.record("wrote", second or keywords.get("dst") or keywords.get("path"))

    def _paths(self, filenames: Any) -> Iterator[Any]:
        if isinstance(filenames, (str, bytes, os.PathLike)):
            yield filenames
        elif isinstance(filenames, (list, tuple)):
            yield from filenames
        elif self.tensorflow.is_tensor(filenames) and hasattr(filenames, "numpy"):
            yield from filenames.numpy().reshape(-1).tolist()

    def _call_before(self, holder: Any, name: str, callback: Callable[..., None]) -> None:
        original, writer = getattr(holder, name), self.writer

        @functools.wraps(original)
        def call(*arguments: Any, **keywords: Any) -> Any:
            if not writer.is_forked():
                writer.attempt(f"files: {name}", callback, *arguments, **keywords)
            return call_script(original, *arguments, **keywords)

        setattr(holder, name, call)
