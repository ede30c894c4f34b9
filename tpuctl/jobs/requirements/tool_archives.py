"""Archives of what jobs bring to their machines: made or downloaded here, named by content."""

from __future__ import annotations

import gzip
import hashlib
import platform
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from tpuctl.cloud.threads import in_thread
from tpuctl.environments import exclusive
from tpuctl.errors import RemoteFailed
from tpuctl.files import private_folder
from tpuctl.jobs.requirements.python_archives import archives_folder, fetch_python
from tpuctl.jobs.requirements.uv_program import UvFailed, find_uv, run_uv, uv_version
from tpuctl.model.jobs.installation import PythonBuild, Tool

# Of the wheels of uv, which older systems than the machines' can run.
WHEEL_PLATFORMS = {
    "x86_64": "x86_64-manylinux_2_28",
    "aarch64": "aarch64-manylinux_2_28",
}


async def fetch_archive(tool: Tool, report: Callable[[int], None]) -> Path:
    """The archive of a tool, on this computer. `report` gets the number of bytes so far.

    Raises RemoteFailed if it cannot be had here.
    """
    if isinstance(tool, PythonBuild):
        return await fetch_python(tool, report)
    folder = private_folder(archives_folder())
    archive = folder / f"{tool.key}.tar.gz"
    async with exclusive(folder / f"{tool.key}.lock", lambda text: None, waiting=""):
        if not archive.exists():
            await in_thread(_pack_uv, tool, archive)
    return archive


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _pack_uv(tool: Tool, archive: Path) -> None:
    """uv of this computer if the machines can run it, otherwise that of the wheel for them."""
    architecture = tool.key.rpartition("-")[2]
    own = find_uv()
    is_same = (sys.platform, platform.machine()) == ("linux", architecture)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix="uv-") as scratch:
        program = Path(scratch, "bin", "uv")
        if is_same and own is not None and tool.version == uv_version():
            program = Path(own)
        else:
            _install_wheel(tool, architecture, scratch)
        partial = Path(scratch, archive.name)
        _pack(program, partial)
        partial.replace(archive)


def _install_wheel(tool: Tool, architecture: str, target: str) -> None:
    options = ["--python-platform", WHEEL_PLATFORMS[architecture], "--python-version", "3.12"]
    command = ["pip", "install", "--no-deps", "--only-binary", ":all:", "--no-config"]
    try:
        run_uv([*command, *options, "--target", target, f"uv=={tool.version}"])
    except UvFailed as error:
        raise RemoteFailed("Cannot download uv", error.output.strip()) from error


def _pack(program: Path, target: Path) -> None:
    """An archive with the program alone, the same for the same program."""
    with (
        target.open("wb") as file,
        gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.USTAR_FORMAT) as archive,
        program.open("rb") as source,
    ):
        info = tarfile.TarInfo("uv")
        info.size, info.mode = program.stat().st_size, 0o755
        archive.addfile(info, source)
