"""Files that a script opens through TensorFlow, to be read or written."""

from __future__ import annotations

import functools
import importlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from .context import Rehearsal

__all__ = ["install"]

DATASETS = ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset")
MAX_LOOKUPS = 16  # objects of buckets that are looked for, at most; each costs a request
SLOW_LOOKUP_SECONDS = 5.0  # seconds; after an answer that took longer nothing more is asked
MAX_PATHS = 2000


def install(rehearsal: Rehearsal, tensorflow: Any) -> None:
    """Watch what opens, copies and renames files, and the datasets that read them."""
    files = Files(rehearsal, tensorflow)
    attempt = rehearsal.writer.attempt
    attempt("files", files.watch_opening)
    attempt("copies of files", files.watch_copies)
    for name in DATASETS:
        attempt("datasets of files", files.watch_dataset, getattr(tensorflow.data, name))


class Files:
    """Writes each path once for reading and once for writing."""

    def __init__(self, rehearsal: Rehearsal, tensorflow: Any) -> None:
        self.writer, self.tensorflow = rehearsal.writer, tensorflow
        self.noted: set[tuple[str, str]] = set()
        self.lookups = 0

    def watch_opening(self) -> None:
        module = importlib.import_module("tensorflow.python.lib.io.file_io")

        def opened(file: Any, name: Any, mode: Any = "r", *_: Any, **__: Any) -> None:
            self.note("read" if str(mode).startswith("r") else "wrote", name)

        self._before(module.FileIO, "__init__", opened)
        self._before(self.tensorflow.io.TFRecordWriter, "__init__", self._written)

    def watch_copies(self) -> None:
        gfile = self.tensorflow.io.gfile
        for name in ("copy", "rename"):
            self._before(gfile, name, self._written)

    def watch_dataset(self, kind: Any) -> None:
        def before_init(dataset: Any, filenames: Any = None, *_: Any, **__: Any) -> None:
            for path in self._paths(filenames):
                self.note("read", path, is_looked_for=True)

        self._before(kind, "__init__", before_init)

    def note(self, kind: str, path: Any, is_looked_for: bool = False) -> None:
        path = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        if not path or (kind, path) in self.noted or len(self.noted) >= MAX_PATHS:
            return
        self.noted.add((kind, path))
        missing = {}
        if is_looked_for and path.startswith("gs://") and self.lookups < MAX_LOOKUPS:
            self.lookups += 1
            began = time.monotonic()
            missing = {"missing": not self.tensorflow.io.gfile.exists(path)}
            if time.monotonic() - began > SLOW_LOOKUP_SECONDS:
                self.lookups = MAX_LOOKUPS
        self.writer.write(kind, path=path, **missing)

    def _written(self, first: Any, second: Any = None, *_: Any, **keywords: Any) -> None:
        """Note the second argument: a writer's path, or where something is copied to."""
        self.note("wrote", second or keywords.get("dst") or keywords.get("path"))

    def _paths(self, filenames: Any) -> Iterator[Any]:
        if isinstance(filenames, (str, bytes, os.PathLike)):
            yield filenames
        elif isinstance(filenames, (list, tuple)):
            yield from filenames
        elif self.tensorflow.is_tensor(filenames) and hasattr(filenames, "numpy"):
            yield from filenames.numpy().reshape(-1).tolist()

    def _before(self, holder: Any, name: str, tell: Callable[..., None]) -> None:
        original, writer = getattr(holder, name), self.writer

        @functools.wraps(original)
        def call(*arguments: Any, **keywords: Any) -> Any:
            if not writer.is_foreign():
                writer.attempt(f"files: {name}", tell, *arguments, **keywords)
            return original(*arguments, **keywords)

        setattr(holder, name, call)
