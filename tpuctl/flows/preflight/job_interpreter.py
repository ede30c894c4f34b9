"""The Python of a job on this computer, and the job's packages for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.engine.step import step
from tpuctl.errors import OperationFailed, Refused
from tpuctl.interpreters import Interpreter, current, find, install, install_hint
from tpuctl.jobs.requirements.uv_program import UvFailed, run_uv, uv_path

if TYPE_CHECKING:
    from tpuctl.model.events import Emit
    from tpuctl.model.jobs.installation import Installation, PythonBuild
    from tpuctl.preflight.rehearsal.job_packages import Packages

# What locks have for TPUs only, and what a CPU needs instead.
CPU_PACKAGES = {"libtpu": "", "libtpu-nightly": "", "tensorflow-tpu": "tensorflow"}
# What locks have that an environment with its own TensorFlow does without.
TENSORFLOW_PACKAGES = dict.fromkeys(("tensorflow", "tensorflow-cpu", "tensorflow-tpu"), "")


@dataclass(frozen=True)
class PackageFolders:
    """Where packages are installed: the cache of environments, the cache of downloads, and an empty
    working folder."""

    home: Path
    downloads: Path
    scratch: Path


async def job_interpreter(
    build: PythonBuild, emit: Emit, may_install: Callable[[str], bool]
) -> Interpreter:
    """An interpreter of this computer for a job that brings this Python: the same version if there
    is one, else another of the same minor version.

    If there is none, uv downloads it, if `may_install` agrees to the question. Raises Refused.
    """
    interpreter = await asyncio.to_thread(_installed, build)
    if interpreter is None and may_install(
        f"The job runs on Python {build.version}, which is not installed. Download it with uv?"
    ):
        await _install(build, emit)
        interpreter = await asyncio.to_thread(_installed, build)
    if interpreter is None:
        raise Refused(
            "The job's Python is not installed here",
            f"the job runs on Python {build.version}, and no Python {build.minor} was found on "
            "PATH, in pyenv or in uv",
            hint=f"{install_hint(build.minor)}\nThen run the command again.",
            where="job.python",
        )
    return interpreter


def python_note(build: PythonBuild, interpreter: Interpreter) -> str:
    """Which Python is used for a job that brings its own."""
    text = f"The script runs on Python {interpreter.version}"
    if interpreter.version == build.version:
        return f"{text}, as the job does."
    return f"{text}; the job's {build.version} is not installed here."


def _installed(build: PythonBuild) -> Interpreter | None:
    if current().version == build.version:
        return current()
    return _same_version(build) or find((build.minor,))


def _same_version(build: PythonBuild) -> Interpreter | None:
    """The interpreter of exactly this version on PATH, in pyenv or in uv."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    folders = [os.environ.get("PATH", os.defpath), str(pyenv / "versions" / build.version / "bin")]
    options = ["--no-python-downloads", "--no-project", "--no-config", "--system"]
    try:
        path = run_uv(
            ["python", "find", *options, f"cpython@{build.version}"],
            variables={"PATH": os.pathsep.join(folders)},
        ).strip()
    except UvFailed:
        return None
    return Interpreter(path, build.version) if path else None


async def _install(build: PythonBuild, emit: Emit) -> None:
    """Download the job's Python. A failure is reported as a failed step, not raised."""
    with (
        suppress(OperationFailed),
        step(emit, f"python/{build.version}", "download", "the job runs on it") as progress,
    ):
        problem = await install(build.version, progress.report)
        if problem is not None:
            raise OperationFailed(
                "uv could not install Python",
                problem,
                hint="Install it another way, with pyenv or your system's packages. From a mirror:"
                "\n    export UV_PYTHON_INSTALL_MIRROR=URL",
            )


async def install_packages(
    python: Path,
    installation: Installation,
    code: Path,
    digest: str,
    folders: PackageFolders,
    report: Callable[[str], None],
    *,
    replaced: Mapping[str, str] | None = None,
    job: Mapping[str, str] | None = None,
) -> Packages:
    """Install a job's packages for a Python of this computer, as a worker would.

    `python` is an image's, or stands for the job's own. `replaced` are packages of a lock to leave
    out or to replace, `job` the job's variables. Raises RemoteFailed with the installer's last
    lines.
    """
    from tpuctl.cloud.threads import in_thread
    from tpuctl.local_cloud.pip_configuration import pip_configuration
    from tpuctl.preflight.rehearsal import job_packages

    config, settings = await in_thread(pip_configuration)
    file = folders.scratch / "pip.conf"
    file.write_text(config, "utf-8")
    variables = {
        **{name: value for name, value in os.environ.items() if name[:6] != "PYTHON"},
        **settings,
        **{name: value for name, value in (job or {}).items() if name.startswith(("PIP_", "UV_"))},
        "PIP_CONFIG_FILE": str(file),
        "PIP_CACHE_DIR": str(folders.downloads),
        "HOME": str(folders.home),
    }
    variables.pop("VIRTUAL_ENV", None)
    variables.setdefault("UV_CACHE_DIR", str(folders.downloads / "uv"))
    return await job_packages.install(
        python,
        installation,
        code,
        digest,
        uv=uv_path(),
        folder=folders.scratch / "requirements",
        variables=variables,
        report=report,
        replaced=replaced,
    )
