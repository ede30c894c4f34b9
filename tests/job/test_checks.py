"""Each script of `checks/`, in a Python that has what it needs, ends with "checked"."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.job.conftest import CHECKS
from tests.support.job_environment import WIKIPEDIA
from tests.support.subprocesses import run_captured

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def run_check(
    command: list[Any], folder: Path, environment: dict[str, str], **options: Any
) -> None:
    result = run_captured([*command, folder], cwd=folder, env=environment, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1:] == ["checked"]


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("script", "variables"),
    [
        ("checkpoints.py", {}),  # only complete ones of the same run are restored
        pytest.param("checkpoints.py", {"KILLS": "6"}, marks=pytest.mark.soak),
        ("data.py", {}),  # TensorFlow reads the records
        ("devices.py", {}),  # their choice, and the pipeline of remote ones
        pytest.param("network.py", {}, marks=pytest.mark.soak),  # loss and optimizer
        pytest.param("result.py", {}, marks=pytest.mark.soak),  # loaded as users load it; errors
        pytest.param("step.py", {}, marks=pytest.mark.soak),  # on one device and on two
    ],
)
def test_in_forked_process(
    forked_python: list[str],
    check_environment: dict[str, str],
    tmp_path: Path,
    script: str,
    variables: dict[str, str],
) -> None:
    """FORKED_PYTHON has the command that runs another script this way."""
    environment = {**check_environment, "FORKED_PYTHON": shlex.join(forked_python), **variables}
    run_check([*forked_python, CHECKS / script], tmp_path, environment, stdin=subprocess.DEVNULL)


@pytest.mark.soak
@pytest.mark.tensorflow
def test_classification(
    job_python: Path, check_environment: dict[str, str], tmp_path: Path
) -> None:
    run_check([job_python, CHECKS / "classify.py"], tmp_path, check_environment, timeout=800)


@pytest.mark.soak
@pytest.mark.tensorflow
def test_vocabulary_and_records(
    wiki_python: Path, job_environment: dict[str, str], tmp_path: Path
) -> None:
    environment = {**job_environment, "PYTHONPATH": os.fspath(WIKIPEDIA)}
    run_check([wiki_python, CHECKS / "record_files.py"], tmp_path, environment)


def test_work_in_processes(job_environment: dict[str, str], tmp_path: Path) -> None:
    """Order, bounds, failures, Ctrl-C."""
    environment = {**job_environment, "PYTHONPATH": os.fspath(WIKIPEDIA)}
    run_check([sys.executable, CHECKS / "workers.py"], tmp_path, environment, timeout=120)
