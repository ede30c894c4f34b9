"""A profile of a running job, collected by its framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """`folder` is the gs:// folder of all the job's profiles, as TensorBoard expects it."""

    job: str
    folder: str
    objects: Mapping[str, tuple[str, ...]]  # of this profile, by worker
    bytes: int
