"""What was rehearsed on this machine: remembered by content, so that `run` need not offer it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tpuctl.files import private_folder

__all__ = ["Content", "Rehearsed"]

KEPT_FOLDERS = 10  # of rehearsals, with their logs
KEPT_NAMES = 1000


@dataclass(frozen=True)
class Content:
    """What decides whether a rehearsal still counts."""

    digest: str  # of the bundle
    program: str  # as a record names it: the script's path in the bundle, or a module's name
    accelerator: str
    runtime: str
    kind: str

    @property
    def name(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


class Rehearsed:
    """Kept in a folder. What is lost of it is rehearsed anew: no trouble with it is told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has(self, content: Content) -> bool:
        return (self.folder / "known" / content.name).exists()

    def note(self, content: Content, outcome: Mapping[str, object]) -> None:
        """Remember that this content was rehearsed, whatever came of it."""
        records = self.folder / "known"
        with suppress(OSError):
            private_folder(records)
            text = json.dumps({**asdict(content), **outcome}, sort_keys=True)
            draft = records / f".{content.name}.{os.getpid()}"
            draft.write_text(text, "utf-8")
            draft.replace(records / content.name)
            for old in _oldest(records, KEPT_NAMES):
                old.unlink(missing_ok=True)

    def new_folder(self, name: str) -> Path:
        """An empty folder for one rehearsal; the oldest ones go."""
        runs = private_folder(self.folder / "runs")
        for old in _oldest(runs, KEPT_FOLDERS - 1):
            shutil.rmtree(old, ignore_errors=True)
        run_folder = runs / name
        run_folder.mkdir()
        return run_folder


def _oldest(folder: Path, keep: int) -> list[Path]:
    entries = sorted(folder.iterdir(), key=lambda entry: entry.stat().st_mtime, reverse=True)
    return entries[keep:]
