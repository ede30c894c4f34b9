"""For which Pythons the releases of JAX, PyTorch and TensorFlow have wheels."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tpuctl.model.scripts.requirement_files import Requirement, allows

DATA = Path(__file__).with_name("framework_wheels.json")
FUTURE = "9999"  # a release that the table does not have yet


@cache
def _data() -> dict[str, Any]:
    """The tables, which the file describes."""
    tables: dict[str, Any] = json.loads(DATA.read_text("utf-8"))
    return tables


def python_minors() -> tuple[str, ...]:
    """The minor versions of CPython that a job can bring, as in "3.12", oldest first."""
    return tuple(_data()["pythons"])


@cache
def wheels_of(package: str) -> Mapping[str, tuple[str, ...]]:
    """The Pythons of each release of a package, the newest release first; empty for a package that
    is not in the table."""
    minors = python_minors()
    return {
        version: minors[minors.index(oldest) : minors.index(newest) + 1]
        for oldest, newest, versions in _data()["wheels"].get(package, ())
        for version in versions.split()
    }


def allowed_wheels(requirement: Requirement) -> Mapping[str, tuple[str, ...]]:
    """The same for the releases that a requirement allows. Empty if the table has none."""
    wheels = wheels_of(requirement.name)
    return {
        version: pythons
        for version, pythons in wheels.items()
        if allows(requirement.clauses, version)
    }


def releases_for(package: str, python: str) -> list[str]:
    """The releases of a package that have wheels for a Python, newest first."""
    return [version for version, pythons in wheels_of(package).items() if python in pythons]


def range_text(pythons: Iterable[str]) -> str:
    """Pythons in words: "3.11 or later", "3.9 to 3.12", "3.11"."""
    minors = python_minors()
    ordered = sorted(pythons, key=minors.index)
    if ordered[-1] == minors[-1]:
        return f"{ordered[0]} or later"
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"
