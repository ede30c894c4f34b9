"""A whole rehearsal, as it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tpuctl.preflight.rehearsal.findings import Judgement, Target
from tpuctl.preflight.rehearsal.passes import Pass

__all__ = ["Rehearsal"]


@dataclass(frozen=True)
class Rehearsal:
    """What was found out, and where all of it can be read."""

    judgement: Judgement
    target: Target
    passes: tuple[Pass, ...]
    folder: Path
    output: str  # gs://, in the local cloud
    left_out: tuple[str, ...] = ()  # what a worker does and a rehearsal does not
    is_interrupted: bool = False
