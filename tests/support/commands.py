"""Runs programs that must succeed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any


def succeed(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` with both streams kept as text; a failure shows what was printed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done
