"""Programs have rooms in the package, but only one folder on machines."""

from __future__ import annotations

from pathlib import Path

import tpuctl.jobs.shipped
from tpuctl.assets import program, shipped_programs
from tpuctl.jobs.launch import SHIPPED

FILES = [
    path
    for path in Path(tpuctl.jobs.shipped.__path__[0]).rglob("*.py")
    if path.name != "__init__.py"
]


def test_names_of_programs_are_unique() -> None:
    assert sorted(path.name for path in FILES) == sorted(shipped_programs())


def test_programs_are_found_by_name() -> None:
    assert {*SHIPPED} < {*shipped_programs()}
    for path in FILES:
        assert program(path.name) == path.read_text("utf-8")
