"""Programs that tests run to their end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence


def run_captured(
    command: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    input: str | None = None,
    stdin: int | None = None,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program; whatever its exit code, what it wrote is returned as text."""
    return subprocess.run(
        command,
        env=env,
        cwd=cwd,
        input=input,
        stdin=stdin,
        timeout=timeout,
        capture_output=True,
        text=True,
        check=False,
    )
