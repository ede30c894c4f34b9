"""Images: cached virtual environments with the TensorFlow that a TPU runtime carries, for CPU."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import importlib.resources
import os
import platform
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

from platformdirs import user_cache_path

from tpuctl.emulator.machine import MachineError
from tpuctl.emulator.machines.fetching import Fetching, Moved

__all__ = ["ImageStore", "base_interpreter", "site_packages"]

MARKER = "complete"
TOLD = ("Collecting ", "Downloading ", "Using cached ", "Installing collected packages")
INTERPRETER = f"{sys.version_info.major}.{sys.version_info.minor}"


def base_interpreter() -> str:
    """The interpreter that the server's own virtual environment, if any, was made from."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)


def site_packages(environment: Path) -> Path:
    """Where a virtual environment made by this interpreter keeps its packages."""
    return environment / "lib" / f"python{INTERPRETER}" / "site-packages"


class ImageStore:
    """Makes each image once for all local clouds of this user, and keeps it.

    Without a folder it is the one in TPUCTL_IMAGE_CACHE, else in the user's cache folder.
    """

    def __init__(self, cache: Path | None = None) -> None:
        chosen = os.environ.get("TPUCTL_IMAGE_CACHE")
        if cache is None:
            cache = Path(chosen) if chosen else user_cache_path("tpuctl") / "images"
        self.cache = cache.expanduser().absolute()

    @property
    def downloads(self) -> Path:
        """pip's cache, shared by all machines."""
        return self.cache / "pip"

    def offered(self) -> dict[str, Path]:
        """TensorFlow versions that this interpreter can run, oldest first, with their locks."""
        folder = importlib.resources.files("tpuctl.emulator") / "images"
        locks = [Path(str(entry)) for entry in folder.iterdir() if entry.name.endswith(".txt")]
        known = {lock.stem: lock for lock in locks if INTERPRETER in _interpreters(lock)}
        return dict(sorted(known.items(), key=lambda item: _numbers(item[0])))

    def path_of(self, tensorflow: str | None) -> Path:
        """Where the image is, or would be."""
        identity = [platform.python_implementation(), platform.python_version()]
        identity += [sys.platform, platform.machine()]
        if tensorflow is not None:
            identity.append(self._lock(tensorflow).read_text("utf-8"))
        digest = hashlib.sha256("\n".join(identity).encode()).hexdigest()[:16]
        name = f"tensorflow-{tensorflow}" if tensorflow else "python"
        return self.cache / f"{name}-py{INTERPRETER}-{digest}"

    def is_made(self, tensorflow: str | None) -> bool:
        image = self.path_of(tensorflow)
        return (image / MARKER).exists() and (image / "bin" / "python3").exists()

    async def ensure(
        self, tensorflow: str | None, progress: Callable[[str], None], moved: Moved | None = None
    ) -> Path:
        """The image's folder, made now if need be; raises MachineError when that fails.

        `moved` is told how many bytes of how many have come of the file that is being fetched.
        None asks for bare Python. Two processes that want the same image make it once, and one
        that died half-way leaves nothing that would be taken for an image.
        """
        image = self.path_of(tensorflow)
        if self.is_made(tensorflow):
            return image
        self.cache.mkdir(parents=True, exist_ok=True)
        async with _exclusive(image.with_name(image.name + ".lock"), progress) as lock:
            if not self.is_made(tensorflow):
                await self._make(image, tensorflow, progress, lock, moved)
        return image

    def _lock(self, tensorflow: str) -> Path:
        offered = self.offered()
        if tensorflow not in offered:
            raise MachineError(
                f"The local cloud has no image with TensorFlow {tensorflow} for Python "
                f"{INTERPRETER}; it has {', '.join(offered) or 'none'}."
            )
        return offered[tensorflow]

    async def _make(
        self,
        image: Path,
        tensorflow: str | None,
        progress: Callable[[str], None],
        lock: int,
        moved: Moved | None,
    ) -> None:
        what = f"TensorFlow {tensorflow}" if tensorflow else "Python"
        progress(f"Making the image with {what} (once; kept in {self.cache})")
        await asyncio.to_thread(shutil.rmtree, image, ignore_errors=True)
        python = str(image / "bin" / "python3")

        async def run(*command: str) -> None:
            status, tail = await _run(command, progress, keep_open=lock, moved=moved)
            if status != 0:
                shown = "\n".join(tail) or "(it printed nothing)"
                raise MachineError(
                    f"The image with {what} could not be made: "
                    f"`{' '.join(command[1:4])} …` ended with {status}:\n{shown}"
                )

        await run(base_interpreter(), "-m", "venv", "--symlinks", str(image))
        if tensorflow is not None:
            await run(
                *(python, "-m", "pip", "install", "--require-hashes", "--only-binary=:all:"),
                *("--no-compile", "--no-input", "--progress-bar=off", "--no-color"),
                *("--disable-pip-version-check", "--requirement", str(self._lock(tensorflow))),
            )
            # Machines see the image read-only, so the bytecode has to be there beforehand.
            progress("Compiling the image's modules")
            await run(python, "-m", "compileall", "-qq", "-j0", str(site_packages(image)))
        (image / MARKER).touch()


def _interpreters(lock: Path) -> list[str]:
    with lock.open(encoding="utf-8") as lines:
        head, _, versions = lines.readline().partition(":")
    return versions.split() if head == "# interpreters" else []


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


@contextlib.asynccontextmanager
async def _exclusive(path: Path, progress: Callable[[str], None]) -> AsyncIterator[int]:
    """Hold the file's lock; its descriptor is given, so that a child can go on holding it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        told = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    progress("Waiting for another process that is making the same image")
                    told = True
                await asyncio.sleep(0.3)
        yield descriptor
    finally:
        os.close(descriptor)


async def _run(
    command: Sequence[str],
    progress: Callable[[str], None],
    keep_open: int,
    moved: Moved | None = None,
) -> tuple[int, list[str]]:
    """Run to the end, telling the lines that say how far it is; the last lines are returned.

    The child inherits the image's lock: if the server is killed while pip still writes, the
    next server waits for that pip instead of deleting the folder under it.
    """
    with tempfile.TemporaryDirectory(prefix="tpuctl-") as scratch:
        fetching = Fetching(Path(scratch), moved or _nobody)
        watching = asyncio.create_task(fetching.watch())

        def heard(line: str) -> None:
            fetching.heard(line)
            if line.startswith(TOLD):
                progress(line if len(line) < 120 else line[:119] + "…")

        try:
            return await _heard(command, heard, keep_open, scratch)
        finally:
            watching.cancel()


def _nobody(done: int, total: int, text: str) -> None:
    """Nobody wants to know."""


async def _heard(
    command: Sequence[str], heard: Callable[[str], None], keep_open: int, scratch: str
) -> tuple[int, list[str]]:
    """Run to the end, with every line passed on; the last ones are returned."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=_environment(os.environ) | {"TMPDIR": scratch},
        pass_fds=[keep_open],
        limit=1 << 20,
    )
    assert process.stdout is not None
    tail: deque[str] = deque(maxlen=15)
    try:
        async for raw in process.stdout:
            line = raw.decode("utf-8", "replace").strip()
            if line:
                tail.append(line)
            heard(line)
        return await process.wait(), list(tail)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _environment(caller: Mapping[str, str]) -> dict[str, str]:
    """The caller's, pip's configuration included, but for what would lead pip elsewhere."""
    misleading = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"}
    misleading |= {"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_VIRTUALENV"}
    kept = {name: value for name, value in caller.items() if name not in misleading}
    return kept | {"PYTHONNOUSERSITE": "1", "LC_ALL": "C.UTF-8"}
