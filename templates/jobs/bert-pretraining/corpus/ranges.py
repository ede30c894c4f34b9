"""Ranges of files, local or in a bucket."""

from __future__ import annotations

from typing import IO

import files

__all__ = ["RangeReader"]


class RangeReader:
    """Reads ranges of files; keeps the last file open, as ranges are read in order."""

    def __init__(self) -> None:
        self.path = ""
        self.file: IO[bytes] | None = None

    def __enter__(self) -> RangeReader:
        return self

    def __exit__(self, *error: object) -> None:
        if self.file is not None:
            self.file.close()

    def __call__(self, path: str, start: int, size: int) -> bytes:
        """Return the bytes from start on, fewer than size at the file's end."""
        with files.read_errors(path):
            if self.file is None or path != self.path:
                self.__exit__()
                self.path, self.file = path, files.open_file(path, "rb")
            self.file.seek(start)
            return self.file.read(size)
