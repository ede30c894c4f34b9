"""Builds of CPython that uv knows, python-build-standalone's, and their archives."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from tpuctl.environments import exclusive
from tpuctl.errors import RemoteFailed
from tpuctl.files import cache_home, private_folder
from tpuctl.jobs.requirements.uv_program import run_uv, uv_environment, uv_path
from tpuctl.model.jobs.installation import PythonBuild
from tpuctl.processes import run_lines

# The release of python-build-standalone, in the URL of a build.
RELEASE = re.compile(r"/(\d{8})/|%2B(\d{8})-|\+(\d{8})-")
STABLE = re.compile(r"\d+\.\d+\.\d+")
POLL_SECONDS = 0.3


def python_builds(architecture: str) -> list[PythonBuild]:
    """The stable CPythons for Linux on an architecture (x86_64, aarch64), the newest first."""
    options = ["--all-versions", "--only-downloads", "--all-arches", "--all-platforms"]
    listed = json.loads(run_uv(["python", "list", *options, "--output-format", "json"]))
    return list(_builds(listed, architecture))


def _builds(listed: list[dict[str, str]], architecture: str) -> Iterator[PythonBuild]:
    for entry in listed:
        is_usable = (
            entry["implementation"] == "cpython"
            and entry["variant"] == "default"
            and (entry["os"], entry["arch"], entry["libc"]) == ("linux", architecture, "gnu")
            and STABLE.fullmatch(entry["version"])
        )
        if is_usable:
            release = RELEASE.search(entry["url"] or "")
            suffix = f"-{next(filter(None, release.groups()))}" if release else ""
            yield PythonBuild(
                key=entry["key"] + suffix, version=entry["version"], request=entry["key"]
            )


def archives_folder() -> Path:
    """Where this user's archives of tools are kept."""
    return cache_home() / "tools"


async def fetch_python(build: PythonBuild, report: Callable[[int], None]) -> Path:
    """The archive of a build, downloaded and verified by uv unless it is here already.

    `report` gets the number of bytes so far. Raises RemoteFailed with uv's reason.
    """
    folder = private_folder(archives_folder())
    archive = folder / f"{build.key}.tar.gz"
    async with exclusive(folder / f"{build.key}.lock", lambda text: None, waiting=""):
        if not archive.exists():
            with tempfile.TemporaryDirectory(dir=folder, prefix="download-") as scratch:
                downloaded = await _download(build, Path(scratch), report)
                downloaded.replace(archive)
    return archive


async def _download(build: PythonBuild, scratch: Path, report: Callable[[int], None]) -> Path:
    """uv keeps an archive that it has verified in the folder that it is given for them."""
    kept = scratch / "archives"
    command = [
        *(uv_path(), "--color", "never", "python", "install", "--no-bin", "--no-config"),
        *("--install-dir", str(scratch / "installed"), build.request),
    ]
    environment = uv_environment({"UV_PYTHON_CACHE_DIR": str(kept)})
    progress = asyncio.create_task(_report_size(kept, report))
    try:
        status, tail = await run_lines(command, lambda line: None, tail_lines=6, env=environment)
    finally:
        progress.cancel()
        shutil.rmtree(scratch / "installed", ignore_errors=True)
    archives = [path for path in kept.glob("*") if path.is_file()] if kept.is_dir() else []
    if status != 0 or len(archives) != 1:
        reason = " ".join(line.removeprefix("error: ") for line in tail) or "no archive"
        raise RemoteFailed("Cannot download Python", f"{build.request}: {reason}")
    return archives[0]


async def _report_size(folder: Path, report: Callable[[int], None]) -> None:
    """Report the size of what is in a folder, until cancelled."""
    while True:
        await asyncio.sleep(POLL_SECONDS)
        size = 0
        for path in folder.rglob("*"):
            with suppress(OSError):  # moved to its final place meanwhile
                size += path.lstat().st_size
        if size:
            report(size)
