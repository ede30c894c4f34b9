"""Vocabulary and records of the template korean-wikipedia, in a Python that has TensorFlow."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.job_environment import WIKIPEDIA

CHECK = Path(__file__).with_name("checks") / "record_files.py"


@pytest.mark.soak
@pytest.mark.tensorflow
@pytest.mark.timeout(900)
def test_records(wiki_python: Path, job_environment: dict[str, str], tmp_path: Path) -> None:
    result = subprocess.run(
        [wiki_python, CHECK, tmp_path],
        env={**job_environment, "PYTHONPATH": os.fspath(WIKIPEDIA)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1:] == ["checked"]
