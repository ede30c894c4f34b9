"""Virtual environments shared by all programs of this user: locking them and running pip."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tpuctl.processes import run_lines

_PROGRESS = ("Collecting ", "Downloading ", "Using cached ", "Installing collected packages")
_MAX_LINE_LENGTH = 120  # of a reported line, in characters
_MISLEADING = frozenset(
    {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"}
    | {"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_VIRTUALENV"}
)


def environments_folder() -> Path:
    """Where images and environments are: TPUCTL_IMAGE_CACHE, or in the user's cache folder."""
    from platformdirs import user_cache_path

    configured = os.environ.get("TPUCTL_IMAGE_CACHE")
    folder = Path(configured) if configured else user_cache_path("tpuctl") / "images"
    return folder.expanduser().absolute()


@contextlib.contextmanager
def shared(path: Path) -> Iterator[None]:
    """Share the file's lock with others: what it is about stays. Waits while it is deleted.

    In a folder that this user cannot write to, there is nothing to share.
    """
    try:
        descriptor = _open_lock(path)
    except OSError:
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def try_exclusive(path: Path, locks: contextlib.ExitStack) -> bool:
    """Hold the file's lock until `locks` ends; False if another process has or shares it."""
    if not path.parent.is_dir():
        return True
    descriptor = _open_lock(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    locks.callback(os.close, descriptor)
    return True


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextlib.asynccontextmanager
async def exclusive(
    path: Path, report: Callable[[str], None], *, waiting: str
) -> AsyncIterator[int]:
    """Hold the file's lock and yield its descriptor, so that a child process can inherit the lock.

    `waiting` is reported once if another process holds the lock.
    """
    from filelock import lock_descriptor

    descriptor = _open_lock(path)
    try:
        if not lock_descriptor(descriptor, blocking=False):
            report(waiting)
            while not lock_descriptor(descriptor, blocking=False):  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.3)
        yield descriptor
    finally:
        os.close(descriptor)


def pip_variables(caller: Mapping[str, str]) -> dict[str, str]:
    """The caller's variables, including pip's configuration, without those that redirect pip."""
    variables = {name: value for name, value in caller.items() if name not in _MISLEADING}
    return variables | {"PYTHONNOUSERSITE": "1", "LC_ALL": "C.UTF-8"}


async def run_installer(
    command: Sequence[str],
    report: Callable[[str], None],
    *,
    lock: int,
    variables: Mapping[str, str],
    on_line: Callable[[str], None] = lambda line: None,
) -> tuple[int, list[str]]:
    """Run pip or a similar command; returns its exit status and last lines.

    `report` gets pip's progress lines, `on_line` every line. `variables` override `pip_variables`.
    The child inherits the lock: if this process is killed while pip still writes, the next process
    waits for that pip instead of deleting the folder under it.
    """

    def pass_on(line: str) -> None:
        on_line(line)
        if line.startswith(_PROGRESS):
            report(line if len(line) < _MAX_LINE_LENGTH else line[: _MAX_LINE_LENGTH - 1] + "…")

    env = pip_variables(os.environ) | dict(variables)
    return await run_lines(command, pass_on, tail_lines=15, env=env, pass_fds=[lock])
