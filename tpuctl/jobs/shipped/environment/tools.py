"""The tools that a job brings to its machines: a build of Python, and uv.

Used by `environment.py`, this file is sent to workers as it is: standard library only, Python 3.8
and later. A machine has each tool once, in ~/.tpuctl/tools/KEY. In the bucket, below a folder for
each tool:

    lock           the worker that downloads it; see `bucket_lock.py`
    SHA256.tar.gz  its archive, named by its content

The computer that submitted the job stores archives there. One that is missing, one of the workers
downloads, and stores it for the others; without a usable bucket, each worker downloads it.
A rehearsal, which is not on a machine, names the programs of its computer instead (`here`).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import sys
import tarfile
import zipfile

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from tpuctl.jobs.shipped.environment import tool_store
    from tpuctl.jobs.shipped.environment.installer_errors import download_error
    from tpuctl.jobs.shipped.environment.run_once import Failure, RunOnce
    from tpuctl.jobs.shipped.environment.tool_archive import (
        PYTHON,
        UV,
        Tool,
        cannot_unpack,
        extract,
    )
    from tpuctl.jobs.shipped.machine.folder import Folder
else:
    from folder import Folder
    from installer_errors import download_error
    from run_once import Failure, RunOnce
    from tool_archive import PYTHON, UV, Tool, cannot_unpack, extract

OUTPUT_FILE = "tools.log"
PIP_OPTIONS = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
# A module of Python, and not of the folder in which the command runs. `-P` is Python 3.11's.
MODULE = ("-I", "-m")
# Settings of the job for its own use of uv, which would keep uv from downloading this build.
UNSET = ("UV_PYTHON_DOWNLOADS", "UV_PYTHON", "UV_NO_MANAGED_PYTHON", "UV_PYTHON_PREFERENCE")


class Tools:
    """Provides the tools of one job on one machine; `python` is the image's."""

    def __init__(
        self, folder: Folder, spec: dict[str, Any], python: str, variables: Mapping[str, str]
    ) -> None:
        self.folder = folder
        self.spec = spec
        self.image_python = python
        self.variables = variables
        self.here: dict[str, str] = spec.get("here") or {}
        install = spec.get("install") or {}
        self.python_build: dict[str, Any] | None = install.get("python")
        self.uv_build: dict[str, Any] | None = install.get("uv")

    def python(self) -> str:
        """The job's own Python, unpacked if it is not here yet. Raises Failure."""
        assert self.python_build is not None
        if "python" in self.here:
            return self.here["python"]
        tool = Tool(f"Python {self.python_build['version']}", self.python_build, PYTHON)
        return self.provide(tool)

    def uv(self) -> str:
        """uv, unpacked if it is not here yet. Raises Failure."""
        if "uv" in self.here:
            return self.here["uv"]
        if self.uv_build is None:
            raise Failure("this job was submitted without uv: submit it again")
        return self.provide(Tool(f"uv {self.uv_build['version']}", self.uv_build, UV))

    def provide(self, tool: Tool) -> str:
        home = os.path.expanduser("~/.tpuctl/tools/" + tool.key)
        program = os.path.join(home, tool.program)
        once = RunOnce(self.folder, home, self.variables, OUTPUT_FILE)
        if not once.is_done:
            once.do(lambda: self.unpack(once, tool), f"getting {tool}")
        return program

    def unpack(self, once: RunOnce, tool: Tool) -> str:
        """Fill the tool's folder; returns what was done."""
        path = once.home + ".tar.gz"
        try:
            return self.fetch(once, tool, path)
        except OSError as error:
            raise cannot_unpack(tool, error) from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
            shutil.rmtree(once.home + ".download", ignore_errors=True)

    def fetch(self, once: RunOnce, tool: Tool, path: str) -> str:
        def download() -> str:
            shutil.rmtree(once.home + ".download", ignore_errors=True)
            os.makedirs(once.home + ".download")
            if tool.program == PYTHON:
                self.download_python(once, tool, path)
            else:
                self.download_uv(once, tool, path)
            return path

        if not (self.spec.get("tools") and self.spec.get("bucket")):
            download()
            try:
                extract(path, once.home, tool)
            except ValueError as error:
                raise Failure(str(error)) from error
            return f"downloaded {tool}"
        # With HTTP and TLS: takes a while.
        store: tool_store.ToolStore = importlib.import_module("tool_store").ToolStore(
            self.folder, self.spec, tool
        )
        return store.provide(path, download, lambda: extract(path, once.home, tool))

    def download_python(self, once: RunOnce, tool: Tool, path: str) -> None:
        """Let uv download a build, and verify it by the checksum that it knows."""
        uv = self.uv()
        folder = once.home + ".download"
        variables = {name: self.variables[name] for name in self.variables if name not in UNSET}
        variables["UV_PYTHON_CACHE_DIR"] = os.path.join(folder, "cache")
        variables["UV_PYTHON_INSTALL_DIR"] = os.path.join(folder, "python")
        argv = [uv, "python", "install", "--no-bin", "--no-progress", "--color", "never"]
        if once.run(*argv, str(tool.record["request"]), environment=variables):
            raise unavailable(
                tool,
                once.output(),
                "set UV_PYTHON_INSTALL_MIRROR in job.env to a mirror that the machines can reach, "
                "or HTTPS_PROXY to a proxy",
            )
        archives = list(files(variables["UV_PYTHON_CACHE_DIR"], ".tar.gz"))
        if len(archives) != 1:
            raise Failure(f"uv did not keep the archive of {tool}")
        os.replace(archives[0], path)

    def download_uv(self, once: RunOnce, tool: Tool, path: str) -> None:
        """Let pip download uv's wheel, and pack its program."""
        folder = once.home + ".download"
        argv = [self.image_python, *MODULE, "pip", "download", *PIP_OPTIONS, "--no-deps"]
        argv += ["--only-binary", ":all:", "--dest", folder, f"uv=={tool.record['version']}"]
        if once.run(*argv):
            raise unavailable(
                tool,
                once.output(),
                "set PIP_INDEX_URL in job.env to an index that the machines can reach, or "
                "HTTPS_PROXY to a proxy",
            )
        program = os.path.join(folder, UV)
        for wheel in files(folder, ".whl"):
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if re.fullmatch(r"uv-[^/]+\.data/scripts/uv", name):
                        with archive.open(name) as source, open(program, "wb") as target:
                            shutil.copyfileobj(source, target)
        if not os.path.exists(program):
            raise Failure(f"the wheel of {tool} has no program for this machine")
        with tarfile.open(path, "w:gz", compresslevel=6) as packed:
            info = tarfile.TarInfo(UV)
            info.size, info.mode = os.path.getsize(program), 0o755
            with open(program, "rb") as source:
                packed.addfile(info, source)


def unavailable(tool: Tool, output: str, advice: str) -> Failure:
    """The only message if a tool can be had from nowhere."""
    reason = download_error(output)
    return Failure(
        f"{tool} is not in the bucket, and this machine could not download it ({reason}): {advice}"
    )


def files(folder: str, suffix: str) -> Iterator[str]:
    for parent, _, names in os.walk(folder):
        for name in names:
            if name.endswith(suffix):
                yield os.path.join(parent, name)
