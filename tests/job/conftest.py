"""The bundled job's modules, and a Python with TensorFlow for those that need it."""

from __future__ import annotations

import importlib
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.support.forking_server import client_command, forking_server
from tests.support.job_environment import job_python as prepare_job_python

TESTS = Path(__file__).resolve().parents[1]
JOB = TESTS.parent / "templates" / "jobs" / "bert-pretraining"
CHECKS = TESTS / "job" / "checks"
PURE = {
    "accelerators": "training.accelerators",
    "card": "training.card",
    "documents": "corpus.documents",
    "download": "corpus.download",
    "dump": "corpus.dump",
    "errors": "errors",
    "extract": "corpus.extract",
    "fetch": "corpus.fetch",
    "gather": "gather",
    "interruption": "training.interruption",
    "markup": "corpus.markup",
    "memory": "training.memory",
    "options": "options",
    "pieces": "corpus.pieces",
    "plan": "corpus.plan",
    "storage_errors": "storage_errors",
    "schedule": "training.schedule",
    "segments": "corpus.segments",
    "sentences": "corpus.sentences",
    "sources": "corpus.sources",
    "text": "corpus.text",
    "versions": "training.versions",
}
NAMES = ("corpus", "errors", "files", "gather", "options", "storage_errors", "training")


@pytest.fixture(scope="session")
def job() -> Iterator[SimpleNamespace]:
    """The job's modules that need no TensorFlow; removed from sys.modules afterwards."""
    before = forget()
    sys.path.insert(0, str(JOB))  # as when the job's programs run
    try:
        yield SimpleNamespace(**{name: importlib.import_module(PURE[name]) for name in PURE})
    finally:
        sys.path.remove(str(JOB))  # its module names are not unique
        forget()
        sys.modules.update(before)


def forget() -> dict[str, ModuleType]:
    """Remove the job's modules from sys.modules, and return them."""
    imported = [name for name in sys.modules if name.partition(".")[0] in NAMES]
    return {name: sys.modules.pop(name) for name in imported}


@pytest.fixture(scope="session")
def job_python() -> Path:
    """A Python with TensorFlow and the job's requirements."""
    return Path(prepare_job_python())


@pytest.fixture(scope="session")
def job_environment() -> dict[str, str]:
    """A process environment without the caller's TPU, bucket and metadata variables."""
    dropped = ("TPU", "GCE_", "GOOGLE_", "TF_", "PYTHON")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(dropped)
    }
    return {**environment, "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture(scope="session")
def check_environment(job_environment: dict[str, str]) -> dict[str, str]:
    """The environment of a check, which imports the job's modules and our helpers."""
    folders = os.pathsep.join(map(str, (JOB, CHECKS, TESTS.parent)))
    return {**job_environment, "PYTHONPATH": folders, "TF_USE_LEGACY_KERAS": "1"}


@pytest.fixture(scope="session")
def forked_python(job_python: Path, check_environment: dict[str, str]) -> Iterator[list[str]]:
    """A Python whose processes are forked from one that has loaded TensorFlow and the job.

    They log what XLA compiles.
    """
    command = [job_python, "-m", "tests.support.forked_scripts", "preloaded"]
    logging = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "device_compilation_profiler=1"}
    with forking_server(command, check_environment | logging) as address:
        yield client_command(address)


@pytest.fixture
def run_forked_check(
    forked_python: list[str], check_environment: dict[str, str], tmp_path: Path
) -> Callable[..., None]:
    """Run a script in `checks/`, forked, which must print "checked"; more variables as keywords.

    FORKED_PYTHON has the command that runs another script this way.
    """

    def run(name: str, **variables: str) -> None:
        environment = {**check_environment, "FORKED_PYTHON": shlex.join(forked_python), **variables}
        done = subprocess.run(
            [*forked_python, CHECKS / name, tmp_path],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert done.stdout.splitlines()[-1:] == ["checked"]

    return run


@pytest.fixture
def run_check(
    job_python: Path, check_environment: dict[str, str], tmp_path: Path
) -> Callable[[str], None]:
    """Run a script in `checks/` that has to load TensorFlow itself, or does without."""

    def run(name: str) -> None:
        result = subprocess.run(
            [job_python, CHECKS / name, tmp_path],
            env=check_environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        assert result.stdout.splitlines()[-1:] == ["checked"]

    return run
