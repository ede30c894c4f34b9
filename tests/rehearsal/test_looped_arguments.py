"""Steps that loop over the first dimension of an argument, which is no batch then."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.rehearsal.conftest import SCRIPTS, clean_environment
from tests.support.locked_environment import locked_python

ROOT = Path(__file__).resolve().parents[2]
JAX_LOCK = ROOT / "requirements" / "jax.lock"


def lines_of(python: Path, script: str) -> list[str]:
    result = subprocess.run(
        [python, SCRIPTS / script],
        env={**clean_environment(), "PYTHONPATH": os.fspath(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.splitlines()


@pytest.mark.timeout(900)  # may create the environment
def test_loops_of_jax_are_found() -> None:
    assert lines_of(locked_python(JAX_LOCK), "looped_jax.py") == [
        "plain False",
        "accumulating False",
        "scanned True",
        "indexed True",
        "unrolled True",
    ]


@pytest.mark.tensorflow
def test_loops_of_tensorflow_are_found(tensorflow: Path) -> None:
    assert lines_of(tensorflow, "looped_tensorflow.py") == [
        "plain False",
        "accumulating False",
        "scanned True",
        "mapped True",
        "indexed True",
        "unrolled True",
    ]
