"""The bundled job's modules, and a Python with TensorFlow for those that need it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any

import pytest

from tests.support.forking_server import client_command, forking_server
from tests.support.job_environment import job_python as prepare_job_python
from tests.support.locked_environment import locked_python
from tpuctl.interpreters import current

TESTS = Path(__file__).resolve().parents[1]
JOB = TESTS.parent / "templates" / "jobs" / "bert-pretraining"
WIKIPEDIA = JOB.with_name("korean-wikipedia")
CHECKS = TESTS / "job" / "checks"
# The modules that import TensorFlow only where they need it.
PURE = ("data", "devices", "files", "machine", "pretrain", "vocabulary")


@contextmanager
def imported(
    folder: Path, names: Sequence[str], packages: Sequence[Path] = ()
) -> Iterator[SimpleNamespace]:
    """Import a job's modules as its programs do; forget them at the end: two jobs share names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(folder), *sys.path, *map(str, packages)])
        for name in names:
            patch.delitem(sys.modules, name, raising=False)
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
        for name in names:
            sys.modules.pop(name, None)


@pytest.fixture(scope="session")
def job() -> Iterator[SimpleNamespace]:
    """The job's modules that import TensorFlow only where they need it."""
    with imported(JOB, PURE) as modules:
        yield modules


@pytest.fixture(scope="session")
def messages() -> ModuleType:
    """The script of the template korean-messages."""
    path = JOB.parent / "korean-messages" / "messages.py"
    spec = importlib.util.spec_from_file_location("korean_messages", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def wiki() -> SimpleNamespace:
    """The modules of the template korean-wikipedia, with the packages that parse dumps."""
    parsers = locked_python(TESTS.parent / "requirements" / "wikipedia.lock", [current().minor])
    (packages,) = parsers.parents[1].glob("lib/python*/site-packages")
    names = ("files", "vocabulary", "records", "sentences", "wikipedia", "prepare")
    with imported(WIKIPEDIA, names, [packages]) as modules, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("mwparserfromhell", "mwxml", "tokenizers", "tqdm"):
            importlib.import_module(name)  # the template imports them where it needs them
        return modules


@pytest.fixture
def local_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own functions for files instead of TensorFlow's, which take seconds to import."""

    def opened(path: str, mode: str = "r") -> IO[Any]:
        return Path(path).open(mode, encoding=None if "b" in mode else "utf-8")

    def status(path: str) -> SimpleNamespace:
        result = Path(path).stat()
        return SimpleNamespace(length=result.st_size, mtime_nsec=result.st_mtime_ns)

    gfile = SimpleNamespace(
        GFile=opened,
        exists=lambda path: Path(path).exists(),
        isdir=lambda path: Path(path).is_dir(),
        listdir=os.listdir,
        makedirs=lambda path: Path(path).mkdir(parents=True, exist_ok=True),
        remove=os.remove,
        stat=status,
    )
    tensorflow = ModuleType("tensorflow")
    tensorflow.io = SimpleNamespace(gfile=gfile)  # type: ignore[attr-defined]
    tensorflow.errors = SimpleNamespace(OpError=type("OpError", (Exception,), {}))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)


@pytest.fixture(scope="session")
def wiki_python() -> Path:
    """A Python with TensorFlow and the requirements of the template korean-wikipedia."""
    return Path(prepare_job_python(WIKIPEDIA))


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
    folders = os.pathsep.join(map(str, (JOB, CHECKS, TESTS.parent, WIKIPEDIA)))
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
