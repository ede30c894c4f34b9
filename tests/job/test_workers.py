"""Work distributed to processes: order, bounds, failures, Ctrl-C."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
JOB = TESTS.parent / "templates" / "jobs" / "korean-wikipedia"


def test_workers(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, TESTS / "job" / "checks" / "workers.py", tmp_path],
        env={**os.environ, "PYTHONPATH": str(JOB), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1:] == ["checked"]
