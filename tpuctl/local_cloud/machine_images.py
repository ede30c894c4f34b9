"""Images: cached virtual environments with the Python and the TensorFlow, for CPU, of an image of
Google's."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.resources
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tpuctl.environments import environments_folder, exclusive, run_installer, shared
from tpuctl.files import private_folder
from tpuctl.interpreters import Interpreter, current, find, install_hint, or_list
from tpuctl.local_cloud.download_progress import BytesProgress, DownloadProgress
from tpuctl.local_cloud.machine_error import MachineError

MARKER = "complete"  # its time is that of the last use
NAMES = ("python-py*-*/", "tensorflow-*-py*-*/")
# Those that a machine may have instead of its image's: what tpuctl runs there needs 3.8.
PYTHONS = tuple(f"3.{minor}" for minor in range(8, 15))


class NoImage(MachineError):
    """No image has this TensorFlow, or no suitable Python is installed; `hint` says what to do."""

    def __init__(self, text: str, hint: str) -> None:
        super().__init__(text)
        self.hint = hint


@dataclass(frozen=True)
class ImageChoice:
    """The TensorFlow and Python ("3.11") of a machine's image; `note` explains in one line what
    they stand in for."""

    tensorflow: str | None
    python: str
    note: str = ""


def site_packages(environment: Path, minor: str) -> Path:
    """The packages folder of a virtual environment of a Python ("3.11")."""
    return environment / "lib" / f"python{minor}" / "site-packages"


def image_interpreter(image: Path) -> Interpreter:
    """The interpreter that an image, as any virtual environment, was created with."""
    lines = (image / "pyvenv.cfg").read_text("utf-8").splitlines()
    settings = {
        name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)
    }
    version = settings["version"]
    program = f"python{'.'.join(version.split('.')[:2])}"
    return Interpreter(str(Path(settings["home"], program)), version)


class ImageStore:
    """Builds and caches images, shared by all local clouds of this user.

    The default folder is TPUCTL_IMAGE_CACHE, or in the user's cache folder. `tensorflow` None means
    an image with only Python. `python` is the minor version wanted ("3.10"); None is the running
    one. An image with TensorFlow has it if that TensorFlow has wheels for it.
    """

    def __init__(self, cache: Path | None = None, locks: Path | None = None) -> None:
        """`locks` is a folder with a lock file for each TensorFlow; the default is shipped."""
        self.cache = (cache or environments_folder()).expanduser().absolute()
        self._locks = locks or Path(
            str(importlib.resources.files("tpuctl.local_cloud") / "image_locks")
        )

    @property
    def downloads(self) -> Path:
        """pip's cache and, in it, uv's; shared by all machines."""
        return self.cache / "pip"

    def images(self) -> list[Path]:
        """The folders of all images, also of earlier versions and incomplete ones."""
        return [path for name in NAMES for path in sorted(self.cache.glob(name))]

    def locks_of(self, image: Path) -> tuple[Path, Path]:
        """The locks of who builds an image, and of who uses it."""
        return image.with_name(f"{image.name}.lock"), image.with_name(f"{image.name}.use")

    def use(
        self, tensorflow: str | None, python: str | None = None
    ) -> AbstractContextManager[None]:
        """Keep the image from being pruned, whether it is built already or not. NoImage if it
        cannot be built here."""
        return self._shared(self.locks_of(self.path_of(tensorflow, python))[1])

    @property
    def rehearsals_lock(self) -> Path:
        return self.cache / "rehearsals.lock"

    def rehearsing(self) -> AbstractContextManager[None]:
        """Keep all images and environments from being pruned: a rehearsal or compilation runs."""
        return self._shared(self.rehearsals_lock)

    def _shared(self, lock: Path) -> AbstractContextManager[None]:
        with suppress(OSError):  # then it is not locked
            private_folder(self.cache)
        return shared(lock)

    def available(self) -> dict[str, Path]:
        """TensorFlow versions that a Python here can run, oldest first, with their lock files."""
        return {version: lock for version, lock in self.locks().items() if self.can_run(version)}

    def locks(self) -> dict[str, Path]:
        """All TensorFlow versions with an image, oldest first, with their lock files."""
        locks = sorted(self._locks.glob("*.txt"), key=lambda lock: _version_parts(lock.stem))
        return {lock.stem: lock for lock in locks}

    def interpreters(self, tensorflow: str) -> list[str]:
        """The Pythons that a TensorFlow has wheels for, as in "3.11", the preferred one first."""
        return _supported_pythons(self._lock(tensorflow))

    def can_run(self, tensorflow: str | None) -> bool:
        """Whether a suitable Python is installed. NoImage for a version without a lock file."""
        return self._interpreter(tensorflow, None) is not None

    def choose(self, tensorflow: str | None, python: str | None = None) -> ImageChoice:
        """The image for a machine with this TensorFlow and Python: the same versions, else the
        nearest ones.

        Raises NoImage if none can be built here, or there is no lock file for it.
        """
        if tensorflow is None:
            return self._choose_python(python or current().minor)
        interpreter = self._interpreter(tensorflow, python)
        if interpreter is not None:
            note = self._python_note(tensorflow, interpreter.minor, python)
            return ImageChoice(tensorflow, interpreter.minor, note)
        needed = or_list(self.interpreters(tensorflow))
        nearest = self.nearest(tensorflow)
        if nearest is None:
            supported = {
                minor for lock in self.locks().values() for minor in _supported_pythons(lock)
            }
            raise NoImage(
                f"TensorFlow {tensorflow} needs Python {needed}. This is Python {current().minor}, "
                f"which no TensorFlow here has wheels for, and no Python "
                f"{or_list(sorted(supported))} was found on PATH, in pyenv or in uv.",
                install_hint(self.interpreters(tensorflow)[0]),
            )
        choice = self.choose(nearest, python)
        note = f"TensorFlow {nearest} instead of {tensorflow}: {_not_found(needed)}"
        return replace(choice, note=f"{note} {choice.note}".rstrip())

    def _choose_python(self, python: str) -> ImageChoice:
        """The image with only this Python, or the nearest one: newer if there is any."""
        if self._interpreter(None, python) is not None:
            return ImageChoice(None, python)
        place = [*PYTHONS, python].index(python)
        others = (*PYTHONS[place + 1 :], *reversed(PYTHONS[:place]))
        nearest = next(
            (minor for minor in others if self._interpreter(None, minor) is not None),
            current().minor,
        )
        note = f"Python {nearest} instead of {python}: {_not_found(python)}"
        return ImageChoice(None, nearest, note)

    def _python_note(self, tensorflow: str, actual: str, python: str | None) -> str:
        if python is None or python == actual:
            return ""
        minors = self.interpreters(tensorflow)
        reason = f"the images with TensorFlow {tensorflow} are for Python {or_list(minors)}."
        if python in minors:
            reason = _not_found(python)
        return f"Python {actual} instead of {python}: {reason}"

    def nearest(self, tensorflow: str) -> str | None:
        """The nearest available version (the newer of two); None if none is available."""
        rank = _version_rank(tensorflow)
        newest_first = reversed(self.available())
        return min(
            newest_first, key=lambda version: abs(_version_rank(version) - rank), default=None
        )

    def path_of(self, tensorflow: str | None, python: str | None = None) -> Path:
        """The image's folder, whether it exists or not. NoImage if it cannot be built here."""
        return self._resolve(tensorflow, python)[0]

    def _resolve(self, tensorflow: str | None, python: str | None) -> tuple[Path, Interpreter]:
        """The image's folder and its Python."""
        interpreter = self._interpreter(tensorflow, python)
        if interpreter is None and tensorflow is None:
            assert python is not None, "the running one exists"
            raise NoImage(
                f"An image with Python {python}: {_not_found(python)}", install_hint(python)
            )
        if interpreter is None:
            assert tensorflow is not None
            needed = self.interpreters(tensorflow)
            raise NoImage(
                f"TensorFlow {tensorflow} needs Python {or_list(needed)}, and none was found on "
                "PATH, in pyenv or in uv.",
                install_hint(needed[0]),
            )
        return self._path(tensorflow, interpreter), interpreter

    def _path(self, tensorflow: str | None, interpreter: Interpreter) -> Path:
        identity = ["CPython", interpreter.version, sys.platform, platform.machine()]
        if tensorflow is not None:
            identity.append(self._lock(tensorflow).read_text("utf-8"))
        digest = hashlib.sha256("\n".join(identity).encode()).hexdigest()[:16]
        return self.cache / f"{_name(tensorflow)}-py{interpreter.minor}-{digest}"

    def _interpreter(self, tensorflow: str | None, python: str | None) -> Interpreter | None:
        """The image's Python: the running one, that of an existing image, or one found."""
        running = current()
        if tensorflow is None:
            minors = [python or running.minor]
        else:
            minors = self.interpreters(tensorflow)
            if python in minors and (interpreter := self._first(tensorflow, [python])):
                return interpreter
        return self._first(tensorflow, minors)

    def _first(self, tensorflow: str | None, minors: Sequence[str]) -> Interpreter | None:
        running = current()
        if running.minor in minors:
            return running
        for minor in minors:
            for image in self.cache.glob(f"{_name(tensorflow)}-py{minor}-*/"):
                # It may have been built under another PATH than the server's.
                if (
                    _is_complete(image)
                    and self._path(tensorflow, image_interpreter(image)) == image
                ):
                    return image_interpreter(image)
        return find(minors)

    def is_cached(self, tensorflow: str | None, python: str | None = None) -> bool:
        return _is_complete(self.path_of(tensorflow, python))

    async def ensure(
        self,
        tensorflow: str | None,
        progress: Callable[[str], None],
        on_bytes: BytesProgress | None = None,
        *,
        python: str | None = None,
    ) -> Path:
        """The image's folder, built if it is missing; raises MachineError if that fails.

        `on_bytes` gets the progress of the current download. Concurrent processes build an image
        once, and an interrupted build is never used.
        """
        image, interpreter = await asyncio.to_thread(self._resolve, tensorflow, python)
        if _is_complete(image):
            with suppress(OSError):  # of another user
                (image / MARKER).touch()
            return image
        private_folder(self.cache)
        waiting = "Waiting for another process to build the same image"
        async with exclusive(self.locks_of(image)[0], progress, waiting=waiting) as lock:
            if not _is_complete(image):
                await self._build(image, tensorflow, interpreter, progress, lock, on_bytes)
        return image

    def _lock(self, tensorflow: str) -> Path:
        locks = self.locks()
        if tensorflow not in locks:
            raise NoImage(
                f"The local cloud has no image with TensorFlow {tensorflow}. "
                f"Available: {', '.join(locks)}.",
                "Choose another runtime:\n    tpuctl runtimes",
            )
        return locks[tensorflow]

    async def _build(
        self,
        image: Path,
        tensorflow: str | None,
        interpreter: Interpreter,
        progress: Callable[[str], None],
        lock: int,
        on_bytes: BytesProgress | None,
    ) -> None:
        description = f"TensorFlow {tensorflow}" if tensorflow else f"Python {interpreter.minor}"
        progress(f"Building the image with {description} (once; cached in {self.cache})")
        await asyncio.to_thread(shutil.rmtree, image, ignore_errors=True)
        python = str(image / "bin" / "python3")

        async def run(*command: str) -> None:
            status, tail = await _run(command, progress, lock, on_bytes)
            if status != 0:
                output = "\n".join(tail) or "(no output)"
                raise MachineError(
                    f"Failed to build the image with {description}: "
                    f"`{' '.join(command[2:5])} …` exited with {status}:\n{output}"
                )

        await run(interpreter.path, "-I", "-m", "venv", "--symlinks", str(image))
        if tensorflow is not None:
            await run(
                *(python, "-I", "-m", "pip", "install"),
                *("--require-hashes", "--only-binary=:all:"),
                *("--no-compile", "--no-input", "--progress-bar=off", "--no-color"),
                *("--disable-pip-version-check", "--requirement", str(self._lock(tensorflow))),
            )
            # The image is read-only on machines, so bytecode must be compiled beforehand.
            progress("Compiling the image's modules")
            await run(
                python,
                "-I",
                "-m",
                "compileall",
                "-qq",
                "-j0",
                str(site_packages(image, interpreter.minor)),
            )
        (image / MARKER).touch()


def _name(tensorflow: str | None) -> str:
    return f"tensorflow-{tensorflow}" if tensorflow else "python"


def _not_found(minors: str) -> str:
    return f"no Python {minors} was found on PATH, in pyenv or in uv."


def _supported_pythons(lock: Path) -> list[str]:
    with lock.open(encoding="utf-8") as lines:
        head, _, versions = lines.readline().partition(":")
    return versions.split() if head == "# interpreters" else []


def _is_complete(image: Path) -> bool:
    return (image / MARKER).exists() and (image / "bin" / "python3").exists()


def _version_rank(version: str) -> int:
    """A version as a number whose differences measure distance, patch releases the nearest."""
    major, minor, patch, *_ = (*_version_parts(version), 0, 0)
    return (major * 1000 + minor) * 1000 + patch


def _version_parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


async def _run(
    command: Sequence[str],
    progress: Callable[[str], None],
    lock: int,
    on_bytes: BytesProgress | None = None,
) -> tuple[int, list[str]]:
    """Run pip, and report the progress of its downloads."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-") as scratch:
        download = DownloadProgress(Path(scratch), on_bytes or (lambda done, total, text: None))
        polling = asyncio.create_task(download.poll())
        try:
            return await run_installer(
                command,
                progress,
                lock=lock,
                variables={"TMPDIR": scratch},
                on_line=download.on_line,
            )
        finally:
            polling.cancel()
