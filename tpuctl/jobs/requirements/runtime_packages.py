"""What tpuctl needs to run where nothing can be downloaded: the packages of its lock, installed
here for the Python of another machine."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

from tpuctl.assets import runtime_lock
from tpuctl.cloud.threads import in_thread
from tpuctl.jobs.requirements.packing import pack_files
from tpuctl.jobs.requirements.uv_program import follow_uv
from tpuctl.model.jobs.installation import PythonBuild, Tool
from tpuctl.model.text.record_parsing import Name
from tpuctl.version import __version__

# Of wheels, which older systems than the machines' can run.
WHEEL_PLATFORMS = {
    "x86_64": "x86_64-manylinux_2_28",
    "aarch64": "aarch64-manylinux_2_28",
}


class RuntimePackages(Tool):
    """The packages of one lock, for one Python."""

    python: Name  # as in "3.12"
    architecture: Name


def runtime_packages(build: PythonBuild) -> RuntimePackages:
    """The packages of this tpuctl, for a build of Python, not stored yet."""
    lock = hashlib.sha256(runtime_lock().read_bytes()).hexdigest()[:16]
    architecture = build.request.split("-")[3]
    return RuntimePackages(
        key=f"tpuctl-packages-{lock}-{build.minor}-{architecture}",
        version=__version__,
        python=build.minor,
        architecture=architecture,
    )


async def packed_packages(packages: RuntimePackages, scratch: Path) -> Path:
    """An archive of the packages, verified by the hashes of the lock. Raises what `follow_uv`
    does."""
    folder, archive = scratch / "packages", scratch / "packages.tar.gz"
    options = ["--python", sys.executable, "--python-version", packages.python, "--no-deps"]
    options += ["--python-platform", WHEEL_PLATFORMS[packages.architecture]]
    options += ["--only-binary", ":all:", "--require-hashes"]
    await follow_uv(
        ["pip", "install", *options, "--target", str(folder), "-r", str(runtime_lock())],
        lambda line: None,
        folder=scratch,
    )
    await in_thread(pack_files, _installed(folder), archive, mode=0o644)
    return archive


def _installed(folder: Path) -> Iterator[tuple[str, Path]]:
    """The files of packages, by their names. Without programs: they would start this computer's
    Python."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and name.parts[0] != "bin" and "__pycache__" not in name.parts:
            yield name.as_posix(), path
