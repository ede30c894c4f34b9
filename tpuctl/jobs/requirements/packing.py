"""Packs files into an archive of a tool: the same bytes for the same files."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Iterable
from pathlib import Path


def pack_files(files: Iterable[tuple[str, Path]], target: Path, *, mode: int) -> None:
    """Write files, with these names and this mode, to a compressed tar file."""
    with (
        target.open("wb") as file,
        gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, path in files:
            info = tarfile.TarInfo(name)
            info.size, info.mode = path.stat().st_size, mode
            with path.open("rb") as source:
                archive.addfile(info, source)
