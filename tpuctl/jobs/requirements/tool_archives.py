"""Archives of what jobs bring to their machines: made or downloaded here, and kept in the user's
cache, named by content."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tpuctl.cloud.threads import in_thread
from tpuctl.environments import exclusive
from tpuctl.errors import TpuctlError, Usage
from tpuctl.files import archives_folder, archives_lock, private_folder
from tpuctl.interpreters import wheel_uv
from tpuctl.jobs.requirements.packing import pack_files
from tpuctl.jobs.requirements.python_archives import (
    SUFFIX,
    Progress,
    download_python,
)
from tpuctl.jobs.requirements.runtime_packages import (
    WHEEL_PLATFORMS,
    RuntimePackages,
    packed_packages,
)
from tpuctl.jobs.requirements.uv_program import UvFailed, follow_uv, uv_version
from tpuctl.model.jobs.installation import PythonBuild, Tool

LARGE_BYTES = 100_000_000  # of a download, about which the user is asked
SCRATCH = "download-"


@dataclass(frozen=True)
class ToolArchive:
    """An archive on this computer. Its file is whole, and remains until the block ends."""

    path: Path
    sha256: str
    size: int


class ToolUnavailable(TpuctlError):
    """This computer cannot have the archive of a tool."""


class LargeDownload(Exception):
    """A download was ended because it is larger than allowed."""

    def __init__(self, size: int) -> None:
        super().__init__(f"{size} bytes")
        self.size = size


@contextlib.asynccontextmanager
async def tool_archive(
    tool: Tool,
    progress: Progress = lambda done, total: None,
    *,
    max_bytes: int | None = None,
    waiting: Callable[[], None] = lambda: None,
) -> AsyncIterator[ToolArchive]:
    """The archive of a tool, from the cache or else downloaded; `waiting` is called if another
    process downloads it.

    Raises ToolUnavailable if this computer cannot have it, and LargeDownload if more than
    `max_bytes` have to be downloaded.
    """
    async with contextlib.AsyncExitStack() as stack:
        with _reported_errors(tool):
            folder = private_folder(archives_folder()) / tool.key
            lock = exclusive(archives_lock(folder), lambda text: waiting(), waiting="")
            descriptor = await stack.enter_async_context(lock)
            private_folder(folder)
            archive = await in_thread(_cached, tool, folder)
            if archive is None:
                archive = await _added(tool, folder, progress, max_bytes)
            # Others may use it, too, but not delete it.
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            os.utime(archive.path)
        yield archive


def _cached(tool: Tool, folder: Path) -> ToolArchive | None:
    """The archive of that content, or the latest of any. What a killed process left, or what is
    damaged, is deleted."""
    for scratch in folder.glob(f"{SCRATCH}*"):
        shutil.rmtree(scratch, ignore_errors=True)
    archives = sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime)
    for path in reversed(archives):
        sha256 = path.name.removesuffix(SUFFIX)
        if tool.sha256 in (None, sha256):
            if _sha256(path) == sha256:
                return ToolArchive(path, sha256, path.stat().st_size)
            path.unlink()
    return None


async def _added(
    tool: Tool, folder: Path, progress: Progress, max_bytes: int | None
) -> ToolArchive:
    """The archive, downloaded or made, which the cache then has."""

    def limited(done: int, total: int) -> None:
        if max_bytes is not None and max(done, total) > max_bytes:
            raise LargeDownload(max(done, total))
        progress(done, total)

    with tempfile.TemporaryDirectory(
        dir=folder, prefix=SCRATCH, ignore_cleanup_errors=True
    ) as temporary:
        scratch = Path(temporary)
        if isinstance(tool, PythonBuild):
            source = await download_python(tool, scratch, limited)
        elif isinstance(tool, RuntimePackages):
            source = await packed_packages(tool, scratch)
        else:
            source = await _packed_uv(tool, scratch)
        sha256 = await in_thread(_sha256, source)
        target = folder / f"{sha256}{SUFFIX}"
        source.replace(target)
    return ToolArchive(target, sha256, target.stat().st_size)


async def _packed_uv(tool: Tool, scratch: Path) -> Path:
    """This computer's uv if machines can run it, otherwise that of the wheel for them.

    Of a uv that is not a wheel's, it is unknown which libraries it needs.
    """
    architecture = tool.key.rpartition("-")[2]
    program = wheel_uv()
    is_same = (sys.platform, platform.machine()) == ("linux", architecture)
    if program is None or not is_same or tool.version != uv_version():
        options = ["--python", sys.executable, "--python-version", "3.12", "--no-deps"]
        options += ["--python-platform", WHEEL_PLATFORMS[architecture], "--only-binary", ":all:"]
        requirement = f"uv=={tool.version}"
        await follow_uv(
            ["pip", "install", *options, "--target", str(scratch / "wheel"), requirement],
            lambda line: None,
            folder=scratch,
        )
        program = str(scratch / "wheel" / "bin" / "uv")
    archive = scratch / f"uv{SUFFIX}"
    await in_thread(pack_files, [("uv", Path(program))], archive, mode=0o755)
    return archive


def _sha256(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


@contextlib.contextmanager
def _reported_errors(tool: Tool) -> Iterator[None]:
    """Turn what may go wrong on this computer into ToolUnavailable."""
    try:
        yield
    except (UvFailed, Usage) as error:  # Usage: there is no uv, or no list of Pythons
        reason = error.diagnostics[0].detail
        raise ToolUnavailable("Download failed", f"{tool_name(tool)}: {reason}") from error
    except OSError as error:
        raise ToolUnavailable(
            "Cannot write to the cache",
            f"{tool_name(tool)}: {archives_folder()}: {error.strerror or error}",
        ) from error


def tool_name(tool: Tool) -> str:
    """A tool as people call it: Python 3.12.11, uv 0.9.2."""
    if isinstance(tool, RuntimePackages):
        return f"the packages of tpuctl {tool.version}"
    return f"{'Python' if isinstance(tool, PythonBuild) else 'uv'} {tool.version}"
