"""The two virtual environments of a compilation: TensorFlow for TPUs, and the TPU compiler."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import platform
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tpuctl.environments import environments_folder, exclusive, run_installer
from tpuctl.errors import OperationFailed, Refused
from tpuctl.files import private_folder
from tpuctl.interpreters import Interpreter, find, install_hint, or_list
from tpuctl.units import decimal_size

MARKER = "complete"
PYTHONS = ("3.11", "3.12")  # versions that both tpuctl and TensorFlow 2.18 support
DISK_MARGIN = 1.2  # required disk space relative to the estimate


@dataclass(frozen=True)
class Kind:
    """An environment: its locked packages, and the space that it needs."""

    name: str
    title: str
    download: int  # bytes
    disk: int
    lock: Path


HERE = Path(__file__).parent
LOWERING = Kind(
    "lowering", "TensorFlow 2.18 for TPUs", 400_000_000, 1_900_000_000, HERE / "lowering.lock"
)
COMPILER = Kind("compiler", "the TPU compiler", 300_000_000, 1_000_000_000, HERE / "compiler.lock")


def require_machine(minor: str | None = None) -> None:
    """Raise Refused unless both environments can be created on this machine, for the Python of a
    job ("3.12") if it brings one."""
    require_platform()
    _interpreter(minor)


def require_platform() -> None:
    """Raise Refused on unsupported platforms: the TPU packages exist for one platform only."""
    platform_name = f"{platform.system()} on {platform.machine()}"
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise Refused(
            "The TPU compiler does not run on this machine",
            f"it requires Linux on x86_64, and this is {platform_name}",
            hint="Compile on such a machine, or run the script on the TPU.",
            where="--compile",
        )


@functools.cache
def _interpreter(minor: str | None = None) -> Interpreter:
    """The Python for both environments, preferably the current one, unless it has to be of a
    version. Raises Refused if there is none."""
    if minor is not None and minor not in PYTHONS:
        raise Refused(
            "The compiler's TensorFlow does not run on the job's Python",
            f"it requires Python {or_list(PYTHONS)}, and the job runs on Python {minor}",
            hint="Compile with another Python:\n"
            f"    tpuctl rehearse --compile --python {PYTHONS[-1]} SCRIPT",
            where="job.python",
        )
    minors = PYTHONS if minor is None else (minor,)
    interpreter = find(minors)
    if interpreter is None:
        raise Refused(
            "The TPU compiler does not run on this machine",
            f"its TensorFlow requires Python {or_list(minors)}. This is Python "
            f"{platform.python_version()}, and none was found on PATH, in pyenv or in uv",
            hint=f"{install_hint(minors[-1])}\nThen run the command again.",
            where="--compile",
        )
    return interpreter


class Environments:
    """Creates each environment once per user and keeps it.

    By default they are stored next to the local cloud's images: in TPUCTL_IMAGE_CACHE, or in the
    user's cache folder.
    """

    def __init__(self, cache: Path | None = None, minor: str | None = None) -> None:
        """`minor` is the version of a Python ("3.12") that the environments have to be of."""
        self.minor = minor
        self.cache = (cache or environments_folder()).expanduser().absolute()

    def home(self, kind: Kind) -> Path:
        """The folder of an environment, whether it exists or not."""
        parts = [_interpreter(self.minor).version, platform.machine(), kind.lock.read_text("utf-8")]
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
        return self.cache / "compile" / f"{kind.name}-{digest}"

    def is_installed(self, kind: Kind) -> bool:
        marker = self.home(kind) / MARKER
        if not marker.exists():
            return False
        with suppress(OSError):  # of another user
            marker.touch()  # the time of its last use
        return True

    def python(self, kind: Kind) -> Path:
        return self.home(kind) / "bin" / "python3"

    async def ensure(self, kind: Kind, report: Callable[[str], None]) -> Path:
        """The interpreter of an environment, which is created if necessary.

        Concurrent processes create it only once, and an interrupted creation leaves no partial
        environment. Raises OperationFailed with the end of pip's output, Refused if the disk is
        full.
        """
        home = self.home(kind)
        if not self.is_installed(kind):
            private_folder(home.parent)
            waiting = "waiting for another process that is creating it"
            async with exclusive(home.with_suffix(".lock"), report, waiting=waiting) as lock:
                if not self.is_installed(kind):
                    await self._create(kind, home, report, lock)
        return self.python(kind)

    async def _create(
        self, kind: Kind, home: Path, report: Callable[[str], None], lock: int
    ) -> None:
        await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)
        free = shutil.disk_usage(home.parent).free
        if free < kind.disk * DISK_MARGIN:
            raise Refused(
                "Not enough disk space",
                f"{decimal_size(kind.disk)} required in {home.parent}, {decimal_size(free)} free",
                hint="Free up space, or set TPUCTL_IMAGE_CACHE to another folder:\n"
                "    tpuctl local prune",
            )
        needed = f"{decimal_size(kind.disk)} on disk"
        report(f"downloading {decimal_size(kind.download)} to {home.parent} ({needed})")
        python = str(home / "bin" / "python3")
        try:
            await self._run(
                (_interpreter(self.minor).path, "-I", "-m", "venv", str(home)), kind, report, lock
            )
            install = (
                *(python, "-I", "-m", "pip", "install", "--no-deps", "--require-hashes"),
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
                "Failed to create the environment",
                f"{kind.title}: `{' '.join(command[2:5])} …` exited with code {status}:\n{output}",
                hint="Check disk space and access to the package index, then run again\n"
                "    tpuctl rehearse --compile SCRIPT",
            )
