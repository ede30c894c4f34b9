"""The cases of the check's rules in `tests/cases/check`, and programs run with a real framework."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.support.locked_environment import locked_python

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
    (observations,) = _observe(packages, observer, [()], sources, environment)
    return observations


def observe_processes(
    packages: Path, observer: Path, count: int, sources: Iterable[str], **environment: str
) -> list[tuple[dict[str, Any], ...]]:
    """What each of several processes does, by program."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    arguments = [(address, str(count), str(index)) for index in range(count)]
    return [*zip(*_observe(packages, observer, arguments, sources, environment), strict=True)]


def _observe(
    packages: Path,
    observer: Path,
    arguments: Sequence[Sequence[str]],
    sources: Iterable[str],
    environment: Mapping[str, str],
) -> list[list[dict[str, Any]]]:
    """What the programs do in processes with these arguments, which run at the same time."""
    text, python = json.dumps([*sources]), str(locked_python(packages))

    def run(each: Sequence[str]) -> list[dict[str, Any]]:
        done = subprocess.run(
            [python, str(observer), *each],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            env={**os.environ, **environment},
        )
        assert done.returncode == 0, done.stderr[-2000:]
        # Libraries may print lines of their own before.
        observations: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
        return observations

    with ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(run, arguments))
