"""A profile of a running job, collected by its framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """A profile of a job: the folder for TensorBoard, and the objects of each worker."""

    job: str
    folder: str  # a gs:// folder, of all the job's profiles
    objects: Mapping[str, tuple[str, ...]]  # of this profile, by worker
    bytes: int
