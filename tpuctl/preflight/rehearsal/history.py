"""The history of rehearsals on this machine, by content: `run` suggests only new ones."""

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

MAX_FOLDERS = 10  # of rehearsals, with their logs
MAX_RECORDS = 1000


@dataclass(frozen=True)
class Content:
    """The key of a rehearsal: if any of it changes, the script should be rehearsed again."""

    digest: str  # of the bundle
    program: str  # as in the job record: the script's path in the bundle, or a module's name
    accelerator: str
    runtime: str
    kind: str

    @property
    def name(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


class RehearsalHistory:
    """Stored in a folder. Errors when recording are ignored: they only cause another suggestion."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has(self, content: Content) -> bool:
        return (self.folder / "known" / content.name).exists()

    def record(self, content: Content, outcome: Mapping[str, object]) -> None:
        """Record that this content was rehearsed, with its outcome."""
        folder = self.folder / "known"
        with suppress(OSError):
            private_folder(folder)
            text = json.dumps({**asdict(content), **outcome}, sort_keys=True)
            draft = folder / f".{content.name}.{os.getpid()}"
            draft.write_text(text, "utf-8")
            draft.replace(folder / content.name)
            for old in _oldest(folder, MAX_RECORDS):
                old.unlink(missing_ok=True)

    def new_folder(self, name: str) -> Path:
        """Create a folder for a rehearsal, and delete the oldest ones."""
        runs = private_folder(self.folder / "runs")
        for old in _oldest(runs, MAX_FOLDERS - 1):
            shutil.rmtree(old, ignore_errors=True)
        run_folder = runs / name
        run_folder.mkdir()
        return run_folder


def _oldest(folder: Path, keep: int) -> list[Path]:
    entries = sorted(folder.iterdir(), key=lambda entry: entry.stat().st_mtime, reverse=True)
    return entries[keep:]
