"""Runs scripts as a rehearsal does, and reads their observations."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tpuctl.emulator.machines.images import ImageStore
from tpuctl.preflight.rehearsal.observations import Observation, ShimFailed, read

SHIM = Path(__file__).resolve().parents[2] / "tpuctl" / "preflight" / "shim"
SCRIPTS = Path(__file__).parent / "scripts"
Kind = TypeVar("Kind", bound=Observation)


@dataclass(frozen=True)
class Rehearsed:
    """The result of a script."""

    code: int
    output: str
    observations: list[Observation]
    folder: Path

    def all(self, kind: type[Kind]) -> list[Kind]:
        return [each for each in self.observations if isinstance(each, kind)]

    def only(self, kind: type[Kind]) -> Kind:
        [observation] = self.all(kind)
        return observation

    def line(self, text: str) -> int:
        """The number of the script's only line that contains a text."""
        lines = (self.folder / "train.py").read_text("utf-8").splitlines()
        [number] = [number for number, line in enumerate(lines, 1) if text in line]
        return number


def clean_environment() -> dict[str, str]:
    """This process's environment without variables that TensorFlow or Python would read."""
    dropped = ("TPU", "GCE_", "GOOGLE_", "TF_", "PYTHON", "XLA_", "KERAS_")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {**variables, "PYTHONDONTWRITEBYTECODE": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}


@pytest.fixture
def rehearse(tmp_path: Path) -> Callable[..., Rehearsed]:
    """Run a script with the settings of a host; a failure of the shim fails the test."""

    def run(
        script: str,
        *arguments: str,
        python: Path | None = None,
        command: list[str] | None = None,
        folder: Path = tmp_path,
        environment: dict[str, str] | None = None,
        path: Sequence[Path] = (),
        timeout: float = 280,
        **settings: Any,
    ) -> Rehearsed:
        folder.mkdir(exist_ok=True)
        train = Path(script)
        if not train.is_absolute():
            train = folder / "train.py"
            train.write_text((SCRIPTS / script).read_text("utf-8"), "utf-8")
        observations = folder / f"observations-{len(list(folder.iterdir()))}.jsonl"
        merged_settings = {
            "observations": str(observations),
            "mode": "xla",
            "steps": 4,
            "replicas": 1,
            "script": str(train),
            "root": str(train.parent),
            "kind": "vm",
            "grace": 60,
            **settings,
        }
        (folder / "settings.json").write_text(json.dumps(merged_settings), "utf-8")
        started = command or [str(python or sys.executable), str(train), *arguments]
        result = subprocess.run(
            started,
            env={
                **clean_environment(),
                "PYTHONPATH": os.pathsep.join(map(str, (SHIM, *path))),
                "TPUCTL_REHEARSAL": str(folder / "settings.json"),
                **(environment or {}),
            },
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        rehearsed = Rehearsed(result.returncode, result.stdout, read(observations), folder)
        assert rehearsed.all(ShimFailed) == [], result.stdout
        return rehearsed

    return run


def image(version: str) -> Path:
    from tests.support.prerequisites import require_image

    require_image(version)
    folder = asyncio.run(ImageStore().ensure(version, lambda line: print(line, file=sys.stderr)))
    return folder / "bin" / "python3"


@pytest.fixture(scope="session")
def tensorflow() -> Path:
    """A Python with the newest TensorFlow of a runtime, and Keras 3."""
    return image("2.18.0")


@pytest.fixture(scope="session")
def job_python() -> Path:
    """A Python with transformers and tf_keras next to Keras 3."""
    from tests.support.job_environment import job_python

    return Path(job_python())


@pytest.fixture(scope="session")
def image_python() -> Callable[[str], Path]:
    """The Python of another TensorFlow's image."""
    return image
