"""The cases of the check's rules in `tests/cases/check`, and programs run with a real framework."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.locked_environment import locked_python

__all__ = ["CASES", "cases", "marked_lines", "observe"]

CASES = Path(__file__).resolve().parents[1] / "cases" / "check"


def cases(code: str) -> list[dict[str, Any]]:
    """The cases of a rule."""
    (file,) = CASES.glob(f"{code.lower()}_*.toml")
    listed: list[dict[str, Any]] = tomllib.loads(file.read_text("utf-8"))["case"]
    return listed


def marked_lines(source: str) -> list[int]:
    """The lines that are certain to do what the rule says."""
    lines = enumerate(source.split("\n"), 1)
    return [number for number, line in lines if "# TPU" in line and " risk" not in line]


def observe(
    packages: Path, observer: Path, sources: Iterable[str], **environment: str
) -> list[dict[str, Any]]:
    """What programs do, by an observer that runs them with these packages."""
    done = subprocess.run(
        [locked_python(packages), observer],
        input=json.dumps([*sources]),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    observations: list[dict[str, Any]] = json.loads(done.stdout)
    return observations
