"""Locks and environments of other tools, which tpuctl does not install: the message has the command
that exports them.

With `job.requirements: auto`, they are refused if the job would install nothing else, and locks
also beside a pyproject.toml, whose dependencies would be installed in other versions than locked.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tpuctl.errors import Refused
from tpuctl.files import is_file


class ForeignFile(NamedTuple):
    """A file, and the command that writes what it lists into requirements.txt."""

    tool: str
    export: str
    is_lock: bool = True


PIP_LIST = "python -m pip list --format=freeze > requirements.txt"
CONDA = ForeignFile("conda", f"conda run {PIP_LIST}", is_lock=False)
FOREIGN_FILES = {
    "poetry.lock": ForeignFile(
        "Poetry", "poetry export --format requirements.txt --output requirements.txt"
    ),
    "pdm.lock": ForeignFile(
        "PDM", "pdm export --prod --format requirements --output requirements.txt"
    ),
    "Pipfile.lock": ForeignFile("Pipenv", "pipenv requirements --hash > requirements.txt"),
    "pixi.lock": ForeignFile("pixi", f"pixi run {PIP_LIST}"),
    "conda-lock.yml": ForeignFile("conda-lock", f"conda run {PIP_LIST}"),
    **dict.fromkeys(("environment.yml", "environment.yaml", "conda.yml", "conda.yaml"), CONDA),
}
DEPENDENCIES = re.compile(r"(?m)^dependencies:\s*(?:\[\s*[^\]\s]|(?:#.*)?\n(?:\s*#.*\n)*\s*-\s)")
CONDA_PYTHON = re.compile(r"(?m)^\s*-\s*python\s*=+\s*(3\.\d+(?:\.\d+)?)")


def refuse_foreign(folder: Path, *, is_alone: bool) -> None:
    """Raise Refused for such a file in a folder: a lock, or if it `is_alone` any that lists
    dependencies."""
    for name, foreign in FOREIGN_FILES.items():
        path = folder / name
        if not is_file(path) or not (foreign.is_lock or is_alone):
            continue
        text = path.read_text("utf-8", "replace")
        if not foreign.is_lock and not DEPENDENCIES.search(text):
            continue
        if is_alone:
            reason = "it is not read, and nothing else says what the job installs"
            otherwise = (
                "Or set that the job installs nothing, and uses the packages of the image:\n"
                "    job: {requirements: null}"
            )
        else:
            reason = "it is not read, and the job would install other versions than it locks"
            otherwise = (
                "Or set that the job installs the newest versions that the project allows:\n"
                "    job: {requirements: pyproject.toml}"
            )
        exported = foreign.export
        if foreign is CONDA and (python := CONDA_PYTHON.search(text)):
            exported += "\nand ask for its Python, which the export leaves out:"
            exported += f"\n    job: {{python: '{python[1]}'}}"
        where = "in that environment" if foreign.export.startswith("conda") else "in its folder"
        raise Refused(
            "Dependencies of another tool",
            f"{name} is {foreign.tool}'s: {reason}",
            where=f"{path}:1",
            hint=f"Export it with {foreign.tool}, {where}:\n    {exported}\n{otherwise}",
        )
