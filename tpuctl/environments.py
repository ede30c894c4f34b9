"""Virtual environments made once for all programs of this user: their lock, and pip's run."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

from tpuctl.processes import run_lines

__all__ = ["exclusive", "pip_variables", "run_installer"]

_PROGRESS = ("Collecting ", "Downloading ", "Using cached ", "Installing collected packages")
_LONGEST = 120  # characters of a reported line
_MISLEADING = frozenset(
    {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"}
    | {"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_VIRTUALENV"}
)


@contextlib.asynccontextmanager
async def exclusive(
    path: Path, report: Callable[[str], None], *, waiting: str
) -> AsyncIterator[int]:
    """Hold the file's lock and yield its descriptor, so that a child can go on holding it.

    `waiting` is reported once where another process holds it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        is_reported = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not is_reported:
                    report(waiting)
                    is_reported = True
                await asyncio.sleep(0.3)
        yield descriptor
    finally:
        os.close(descriptor)


def pip_variables(caller: Mapping[str, str]) -> dict[str, str]:
    """The caller's, pip's configuration included, but for what would lead pip elsewhere."""
    kept = {name: value for name, value in caller.items() if name not in _MISLEADING}
    return kept | {"PYTHONNOUSERSITE": "1", "LC_ALL": "C.UTF-8"}


async def run_installer(
    command: Sequence[str],
    report: Callable[[str], None],
    *,
    lock: int,
    variables: Mapping[str, str],
    heard: Callable[[str], None] = lambda line: None,
) -> tuple[int, list[str]]:
    """Run pip, or what goes with it; the exit status and the last lines are returned.

    `report` gets the lines that say how far pip is, `heard` every line. `variables` are put over
    `pip_variables`. The child inherits the lock: if we are killed while pip still writes, the
    next process waits for that pip instead of deleting the folder under it.
    """

    def pass_on(line: str) -> None:
        heard(line)
        if line.startswith(_PROGRESS):
            report(line if len(line) < _LONGEST else line[: _LONGEST - 1] + "…")

    env = pip_variables(os.environ) | dict(variables)
    return await run_lines(command, pass_on, last=15, env=env, pass_fds=[lock])
