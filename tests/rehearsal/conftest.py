"""Runs scripts as a rehearsal starts them, and reads what was observed of them."""

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
    """What came of a script."""

    code: int
    output: str
    observations: list[Observation]
    folder: Path

    def all(self, kind: type[Kind]) -> list[Kind]:
        return [one for one in self.observations if isinstance(one, kind)]

    def one(self, kind: type[Kind]) -> Kind:
        [only] = self.all(kind)
        return only

    def line(self, text: str) -> int:
        """The number of the script's only line that holds a text."""
        lines = (self.folder / "train.py").read_text("utf-8").splitlines()
        [number] = [number for number, line in enumerate(lines, 1) if text in line]
        return number


def clean_environment() -> dict[str, str]:
    """This process' environment without what would change how TensorFlow or Python starts."""
    dropped = ("TPU", "GCE_", "GOOGLE_", "TF_", "PYTHON", "XLA_", "KERAS_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}


@pytest.fixture
def rehearse(tmp_path: Path) -> Callable[..., Rehearsed]:
    """Run one of the scripts, with what a host would set; nothing of the shim may go wrong."""

    def run(
        script: str,
        *arguments: str,
        python: Path | None = None,
        command: list[str] | None = None,
        folder: Path = tmp_path,
        environment: dict[str, str] | None = None,
        path: Sequence[Path] = (),
        within: float = 280,
        **settings: Any,
    ) -> Rehearsed:
        folder.mkdir(exist_ok=True)
        train = Path(script)
        if not train.is_absolute():
            train = folder / "train.py"
            train.write_text((SCRIPTS / script).read_text("utf-8"), "utf-8")
        observations = folder / f"observations-{len(list(folder.iterdir()))}.jsonl"
        asked = {
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
        (folder / "settings.json").write_text(json.dumps(asked), "utf-8")
        started = command or [str(python or sys.executable), str(train), *arguments]
        result = subprocess.run(
            started,
            env={
                **clean_environment(),
                "PYTHONPATH": os.pathsep.join(str(one) for one in (SHIM, *path)),
                "TPUCTL_REHEARSAL": str(folder / "settings.json"),
                **(environment or {}),
            },
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=within,
            check=False,
        )
        rehearsed = Rehearsed(result.returncode, result.stdout, read(observations), folder)
        assert rehearsed.all(ShimFailed) == [], result.stdout
        return rehearsed

    return run


def image(version: str) -> Path:
    from tests.support.prerequisites import require_image

    require_image(version)
    made = asyncio.run(ImageStore().ensure(version, lambda line: print(line, file=sys.stderr)))
    return made / "bin" / "python3"


@pytest.fixture(scope="session")
def tensorflow() -> Path:
    """A Python with the newest TensorFlow of a runtime, and Keras 3."""
    return image("2.18.0")


@pytest.fixture(scope="session")
def job_python() -> Path:
    """A Python with transformers and tf_keras beside Keras 3."""
    from tests.support.job_environment import job_python

    return Path(job_python())


@pytest.fixture(scope="session")
def older() -> Callable[[str], Path]:
    """The Python of another TensorFlow's image."""
    return image
