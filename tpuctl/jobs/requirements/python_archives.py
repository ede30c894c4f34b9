"""Builds of CPython that uv knows, python-build-standalone's, and their archives."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from tpuctl.cloud.threads import in_thread
from tpuctl.errors import Usage
from tpuctl.files import archives_folder, private_folder
from tpuctl.jobs.requirements.uv_program import UvFailed, follow_uv, run_uv, uv_version
from tpuctl.model.jobs.installation import PythonBuild

LIST = "UV_PYTHON_DOWNLOADS_JSON_URL"  # names another list of builds than that of uv
# The release of python-build-standalone, in the URL of a build.
RELEASE = re.compile(r"/(\d{8})/|(?:%2B|\+|-)(\d{8})[-T.]")
STABLE = re.compile(r"\d+\.\d+\.\d+")
# With the layout that machines expect: older builds are archives of what they were built from.
SUFFIX = ".tar.gz"
# In what uv prints when a download begins: "Downloading cpython-3.12.1-… (download) (32.1MiB)".
SIZE = re.compile(r"Downloading .*\((\d+(?:\.\d+)?) ?([KMG]i?)?B\)$")
UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
POLL_SECONDS = 0.3

Progress = Callable[[int, int], None]  # bytes done, total bytes (0: unknown)


def python_builds(architecture: str) -> list[PythonBuild]:
    """The stable CPythons for Linux on an architecture (x86_64, aarch64), the newest first.

    Raises Usage if the list that the user has set cannot be read, and what `run_uv` does.
    """
    options = ["--all-versions", "--only-downloads", "--output-format", "json"]
    command = ["python", "list", f"cpython-linux-{architecture}-gnu", *options]
    try:
        # For a folder of ours: settings of the current one are of another project, or broken.
        folder = private_folder(archives_folder())
        listed = json.loads(run_uv([*command, "--project", str(folder)]))
    except UvFailed as error:
        if os.environ.get(LIST):
            raise Usage(
                "Cannot read the list of Pythons",
                f"{LIST}: {error.reason}",
                hint=f"Set {LIST} to a file or an address that can be read, or unset it, so that "
                "uv uses its own list.",
            ) from error
        raise
    builds = [build for entry in listed if (build := _build(entry, architecture)) is not None]
    return sorted(builds, key=lambda build: [*map(int, build.version.split("."))], reverse=True)


def _build(entry: Mapping[str, str], architecture: str) -> PythonBuild | None:
    """The build of an entry of uv's list; None if jobs cannot use it."""
    url = entry.get("url") or ""
    is_usable = (
        (entry["implementation"], entry["variant"]) == ("cpython", "default")
        and (entry["os"], entry["arch"], entry["libc"]) == ("linux", architecture, "gnu")
        and STABLE.fullmatch(entry["version"])
        and url.endswith(SUFFIX)
    )
    if not is_usable:
        return None
    match = RELEASE.search(url)
    # A mirror with names of its own: another address is another build.
    release = match[1] or match[2] if match else hashlib.sha256(url.encode()).hexdigest()[:8]
    return PythonBuild(
        key=f"{entry['key']}-{release}", version=entry["version"], request=entry["key"]
    )


async def download_python(build: PythonBuild, scratch: Path, progress: Progress) -> Path:
    """Have uv download the archive of a build to an empty folder, and verify it; returns its path.

    If `progress` raises, the download ends. Raises UvFailed, also if the uv here has another build
    of that version, as after an update.
    """
    await in_thread(_require, build)
    # uv keeps the archive in UV_PYTHON_CACHE_DIR, also if its checksum is wrong.
    cache = scratch / "archives"
    total = 0

    def read_size(line: str) -> None:
        nonlocal total
        if match := SIZE.match(line):
            total = int(float(match[1]) * UNITS[match[2] or ""])
            progress(0, total)

    async def watch() -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            progress(_size(cache), total)

    options = ["--no-bin", "--install-dir", str(scratch / "installed")]
    download = asyncio.create_task(
        follow_uv(
            ["python", "install", *options, build.request],
            read_size,
            folder=scratch,
            variables={"UV_PYTHON_CACHE_DIR": str(cache)},
        )
    )
    watcher = asyncio.create_task(watch())
    try:
        await asyncio.wait({download, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if watcher.done():
            watcher.result()
        await download
    finally:
        for task in (download, watcher):
            task.cancel()
            with suppress(BaseException):  # of what is ended; what matters was raised above
                await task
    archives = [path for path in _files(cache) if path.name.endswith(SUFFIX)]
    if len(archives) != 1:
        raise UvFailed(["python", "install"], f"error: uv kept no archive of {build.request}")
    return archives[0]


def _require(build: PythonBuild) -> None:
    """Raise UvFailed if uv does not have exactly this build."""
    builds = python_builds(build.request.split("-")[3])
    if build.key not in {existing.key for existing in builds}:
        keys = [existing.key for existing in builds if existing.version == build.version]
        instead = f"; it has {keys[0]} instead" if keys else ""
        raise UvFailed(
            ["python", "install"], f"error: uv {uv_version()} has no build {build.key}{instead}"
        )


def _files(folder: Path) -> Iterator[Path]:
    for top, _, names in os.walk(folder):
        yield from (Path(top, name) for name in names)


def _size(folder: Path) -> int:
    size = 0
    for path in _files(folder):
        with suppress(OSError):  # moved to its final place meanwhile
            size += path.lstat().st_size
    return size
