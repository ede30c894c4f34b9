"""The bundled job's modules, and a Python with TensorFlow to run those that need it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.support import job_environment as made_environment

TESTS = Path(__file__).resolve().parents[1]
JOB = TESTS.parent / "templates" / "jobs" / "bert-pretraining"
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
    "refusal": "refusal",
    "schedule": "training.schedule",
    "segments": "corpus.segments",
    "sentences": "corpus.sentences",
    "sources": "corpus.sources",
    "text": "corpus.text",
    "versions": "training.versions",
}
NAMES = ("corpus", "errors", "files", "gather", "options", "refusal", "training")


@pytest.fixture(scope="session")
def job() -> Iterator[SimpleNamespace]:
    """The job's modules that need no TensorFlow, without their names staying importable."""
    before = forget()
    sys.path.insert(0, str(JOB))  # as its programs have it, when a machine runs them
    try:
        yield SimpleNamespace(**{name: importlib.import_module(PURE[name]) for name in PURE})
    finally:
        sys.path.remove(str(JOB))  # its modules have names that others have, too
        forget()
        sys.modules.update(before)


def forget() -> dict[str, ModuleType]:
    """Take the modules of the job's names out of those imported, and return them."""
    found = [name for name in sys.modules if name.partition(".")[0] in NAMES]
    return {name: sys.modules.pop(name) for name in found}


@pytest.fixture(scope="session")
def job_python() -> Path:
    """A Python with TensorFlow and the job's requirements."""
    return Path(made_environment.job_python())


@pytest.fixture
def job_environment() -> dict[str, str]:
    """The environment of a job's process; nothing of the caller's TPU, bucket or metadata."""
    dropped = ("TPU", "GCE_", "GOOGLE_", "TF_", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture
def run_check(
    job_python: Path, job_environment: dict[str, str], tmp_path: Path
) -> Callable[[str], None]:
    """Run one of the scripts in `checks/`, which fails by an assertion."""

    def run(name: str) -> None:
        result = subprocess.run(
            [job_python, TESTS / "job" / "checks" / name, tmp_path],
            env={**job_environment, "PYTHONPATH": str(JOB), "TF_USE_LEGACY_KERAS": "1"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        assert result.stdout.splitlines()[-1:] == ["checked"]

    return run
