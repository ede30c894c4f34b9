"""Runs scripts as a rehearsal does, and reads their observations."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support.forking_server import client_command, forking_server
from tpuctl.local_cloud.machine_images import ImageStore
from tpuctl.preflight.rehearsal.observations import Observation, ShimFailed, read

SHIM = Path(__file__).resolve().parents[2] / "tpuctl" / "simulated_tpu"
SCRIPTS = Path(__file__).parent / "scripts"
FORKED_SCRIPTS = "tests.support.forked_scripts"
OBSERVED = Path(__file__).with_name("observed_script.py")
TENSORFLOW = ("tensorflow",)  # modules that the Python of a script has loaded
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
    return {**variables, "TF_CPP_MIN_LOG_LEVEL": "2"}


class Pythons:
    """Runs scripts observed, in forks of Pythons that have loaded TensorFlow or JAX.

    `test_without_tensorflow.py`, and rehearsals in `tests/flows`, start each script's own Python.
    """

    def __init__(self) -> None:
        self._commands: dict[tuple[Path, str, tuple[str, ...]], list[str]] = {}
        self._exits = ExitStack()

    def command(self, python: Path, keras: str, modules: tuple[str, ...] = TENSORFLOW) -> list[str]:
        """The command that runs a script like this Python; `keras` is TF_USE_LEGACY_KERAS."""
        key = (python, keras, modules)
        if key not in self._commands:
            variables = {**clean_environment(), "JAX_PLATFORMS": "cpu"}
            if keras:
                variables["TF_USE_LEGACY_KERAS"] = keras
                modules = (*modules, "tf_keras")
            server = forking_server([python, "-m", FORKED_SCRIPTS, *modules], variables)
            address = self._exits.enter_context(server)
            self._commands[key] = [*client_command(address), str(OBSERVED), str(SHIM)]
        return self._commands[key]

    def close(self) -> None:
        self._exits.close()


@pytest.fixture(scope="session")
def pythons() -> Iterator[Pythons]:
    pythons = Pythons()
    yield pythons
    pythons.close()


@pytest.fixture
def rehearse(tmp_path: Path, pythons: Pythons) -> Callable[..., Rehearsed]:
    """Run a script with the settings of a host; a failure of the shim fails the test.

    With `python`, it runs in a fork of that Python, which has loaded `modules`.
    """

    def run(
        script: str,
        *arguments: str,
        python: Path | None = None,
        modules: tuple[str, ...] = TENSORFLOW,
        command: list[str] | None = None,
        folder: Path = tmp_path,
        environment: dict[str, str] | None = None,
        path: Sequence[Path] = (),
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
        variables = {
            **clean_environment(),
            "PYTHONPATH": os.pathsep.join(map(str, (SHIM, *path))),
            "TPUCTL_REHEARSAL": str(folder / "settings.json"),
            **(environment or {}),
        }
        if python is not None:
            keras = variables.get("TF_USE_LEGACY_KERAS", "")
            command = [*pythons.command(python, keras, modules), str(train), *arguments]
        result = subprocess.run(
            command or [sys.executable, str(train), *arguments],
            env=variables,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=280,
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
