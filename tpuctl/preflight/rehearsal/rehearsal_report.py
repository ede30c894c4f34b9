"""The report of a rehearsal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tpuctl.preflight.rehearsal.findings import Assessment, Target
from tpuctl.preflight.rehearsal.passes import Pass


@dataclass(frozen=True)
class Rehearsal:
    """The assessment and passes of a rehearsal, and the folder with its logs."""

    assessment: Assessment
    target: Target
    passes: tuple[Pass, ...]
    folder: Path
    output: str  # gs://, in the local cloud
    skipped: tuple[str, ...] = ()  # actions of a worker that the rehearsal omitted
    is_interrupted: bool = False
    written: Path | None = None  # folder of what the script wrote to its own, if anything
