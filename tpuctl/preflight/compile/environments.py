"""The two heavy environments of a compilation: TensorFlow for TPUs, and the TPU's compiler."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
import platform
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from tpuctl.environments import exclusive, run_installer
from tpuctl.errors import OperationFailed, Refused
from tpuctl.files import private_folder
from tpuctl.interpreters import Interpreter, find, install_hint, or_list

__all__ = ["COMPILER", "LOWERING", "Environments", "Kind", "require_machine"]

MARKER = "complete"
PYTHONS = ("3.11", "3.12")  # that TensorFlow 2.18 has wheels for, among those that run tpuctl
SPARE = 1.2  # of the room on disk that is asked for


@dataclass(frozen=True)
class Kind:
    """An environment: the list of packages it has, and what making it takes."""

    name: str
    title: str
    download: int  # bytes
    disk: int
    lock: Path


HERE = Path(__file__).parent
LOWERING = Kind(
    "lowering", "TensorFlow 2.18 for TPUs", 400_000_000, 1_900_000_000, HERE / "lowering.lock"
)
COMPILER = Kind(
    "compiler", "the TPU's compiler", 300_000_000, 1_000_000_000, HERE / "compiler.lock"
)


def require_machine() -> None:
    """Raise Refused where neither environment can be: TPU packages are for one platform alone."""
    platform_name = f"{platform.system()} on {platform.machine()}"
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise Refused(
            "The TPU's compiler does not run here",
            f"it is offered for Linux on x86_64, and this is {platform_name}",
            hint="Compile on such a machine, or run it on the TPU.",
            where="--compile",
        )
    _interpreter()


@functools.cache
def _interpreter() -> Interpreter:
    """The Python that both are made with: our own if it fits. Refused where there is none."""
    interpreter = find(PYTHONS)
    if interpreter is None:
        raise Refused(
            "The TPU's compiler does not run here",
            f"its TensorFlow needs Python {or_list(PYTHONS)}. This is {platform.python_version()}, "
            "and none of those was found on PATH, in pyenv or in uv",
            hint=f"{install_hint(PYTHONS[-1])}\nThen repeat the command.",
            where="--compile",
        )
    return interpreter


class Environments:
    """Makes each once for this user, and keeps it.

    Without a folder they are where the local cloud's images are: in TPUCTL_IMAGE_CACHE, else in
    the user's cache folder.
    """

    def __init__(self, cache: Path | None = None) -> None:
        folder = os.environ.get("TPUCTL_IMAGE_CACHE")
        if cache is None:
            cache = Path(folder) if folder else user_cache_path("tpuctl") / "images"
        self.cache = cache.expanduser().absolute()

    def home(self, kind: Kind) -> Path:
        """Where the environment is, or would be."""
        parts = [_interpreter().version, platform.machine(), kind.lock.read_text("utf-8")]
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
        return self.cache / "compile" / f"{kind.name}-{digest}"

    def is_installed(self, kind: Kind) -> bool:
        return (self.home(kind) / MARKER).exists()

    def python(self, kind: Kind) -> Path:
        return self.home(kind) / "bin" / "python3"

    async def ensure(self, kind: Kind, report: Callable[[str], None]) -> Path:
        """The interpreter of the environment, made now if need be.

        Two processes that want the same make it once, and one that was ended half-way leaves
        nothing that would be taken for an environment. Raises OperationFailed with pip's last
        words, Refused where the disk has no room.
        """
        home = self.home(kind)
        if not self.is_installed(kind):
            private_folder(home.parent)
            waiting = "another process is making it: waiting"
            async with exclusive(home.with_suffix(".lock"), report, waiting=waiting) as lock:
                if not self.is_installed(kind):
                    await self._create(kind, home, report, lock)
        return self.python(kind)

    async def _create(
        self, kind: Kind, home: Path, report: Callable[[str], None], lock: int
    ) -> None:
        await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)
        free = shutil.disk_usage(home.parent).free
        if free < kind.disk * SPARE:
            raise Refused(
                "No room on the disk",
                f"{_size(kind.disk)} are needed in {home.parent}, {_size(free)} are free",
                hint="Make room, or name another folder in TPUCTL_IMAGE_CACHE.",
            )
        report(f"{_size(kind.download)} to download, {_size(kind.disk)} on disk, in {home.parent}")
        python = str(home / "bin" / "python3")
        try:
            await self._run((_interpreter().path, "-m", "venv", str(home)), kind, report, lock)
            install = (
                *(python, "-m", "pip", "install", "--no-deps", "--require-hashes"),
                *("--only-binary=:all:", "--no-input", "--progress-bar=off", "--no-color"),
                *("--disable-pip-version-check", "--requirement", str(kind.lock)),
            )
            await self._run(install, kind, report, lock)
            (home / MARKER).touch()
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise

    async def _run(
        self, command: Sequence[str], kind: Kind, report: Callable[[str], None], lock: int
    ) -> None:
        variables = {"PIP_CACHE_DIR": str(self.cache / "pip")}
        status, tail = await run_installer(command, report, lock=lock, variables=variables)
        if status:
            output = "\n".join(tail) or "(it printed nothing)"
            raise OperationFailed(
                "Environment cannot be made",
                f"{kind.title}: `{' '.join(command[1:4])} …` ended with {status}:\n{output}",
                hint=(
                    "See whether there is room on the disk and a way to the package "
                    "index, then repeat\n"
                    "    tpuctl rehearse --compile SCRIPT"
                ),
            )


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
