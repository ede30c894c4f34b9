"""Projects of jobs, as their authors keep them, with a package index and a mirror of Pythons."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.forked_cli import run_tpuctl
from tests.support.package_index import PackageIndex, package_index
from tests.support.projects import numbers
from tests.support.python_mirror import PythonMirror, python_mirror
from tests.support.wheels import BACKEND, make_wheel
from tpuctl.interpreters import find
from tpuctl.jobs.requirements.uv_program import uv_path

PRINT_INSTALLED = """
import importlib.metadata
import json
import platform
import sys

distributions = importlib.metadata.distributions()
packages = {distribution.name: distribution.version for distribution in distributions}
print(json.dumps({"python": platform.python_version(), "packages": packages}))
"""
OF_PYTHON = {"pip", "setuptools", "wheel"}  # packages that a Python comes with
# In which a package is under src, and nothing else is needed to build it.
BUILD_SYSTEM = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


@dataclass(frozen=True)
class JobProject:
    """The files of a project by name, and the arguments with which uv writes its lock.

    `setting` is job.requirements, if it is set.
    """

    files: Mapping[str, str]
    lock: Sequence[str] = ()
    setting: str = ""
    script: str = PRINT_INSTALLED


def package_files(folder: str, name: str, source: str) -> dict[str, str]:
    """A package with its own build backend in a folder ("" or ending with a slash), but for its
    pyproject.toml."""
    return {
        f"{folder}backend.py": BACKEND.replace('"lib"', '"src"'),
        f"{folder}facts": f"{name} 1.0 {name}",
        f"{folder}src/{name}/__init__.py": source,
    }


@dataclass(frozen=True)
class JobOutput:
    """What a job has printed about its Python, and what `run` has said."""

    log: str
    story: str  # on stderr, in one line
    exit_code: int

    @property
    def printed(self) -> Mapping[str, object]:
        (line,) = [line for line in self.log.splitlines() if line.startswith('{"python"')]
        return dict(json.loads(line))

    @property
    def python(self) -> str:
        return str(self.printed["python"])

    @property
    def packages(self) -> dict[str, str]:
        """Those that do not come with the Python."""
        packages = self.printed["packages"]
        assert isinstance(packages, dict)
        return {name: packages[name] for name in packages if name not in OF_PYTHON}


@dataclass
class Laboratory:
    """Folders of jobs on one stack, whose packages and Pythons are on loopback."""

    folder: Path
    mirror: PythonMirror
    index: PackageIndex
    stack: str = field(default_factory=lambda: f"projects-{next(numbers)}")
    type_name: str = "v2-8"
    runtime: str = "tpu-ubuntu2204-base"
    zone: str = "us-central1-b"
    network: str = "external"  # how machines are reached with SSH
    config: str = ""  # a configuration and cache of its own

    @property
    def environment(self) -> dict[str, str]:
        """Of tpuctl, and of the project's author."""
        return {
            **self.mirror.variables,
            "UV_DEFAULT_INDEX": self.index.url,
            "UV_HTTP_RETRIES": "0",  # their delays
            **({"TPUCTL_CONFIG_HOME": self.config} if self.config else {}),
        }

    @property
    def downloads(self) -> tuple[int, int]:
        """How much was downloaded from the mirror and the index."""
        return len(self.mirror.requests), len(self.index.downloads)

    def create(self, project: JobProject, **job: object) -> Path:
        """Write a project to a new folder, with its lock and a stack file; returns the folder."""
        folder = self.folder / f"project-{next(numbers)}"
        for name, text in {**project.files, "train.py": self.script(project)}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, "utf-8")
        if project.lock:
            self.run_uv(folder, *project.lock)
        if project.setting:
            job["requirements"] = project.setting
        self.write_stack_file(folder, **job)
        return folder

    @staticmethod
    def script(project: JobProject) -> str:
        return project.files.get("train.py", "") + project.script

    def write_stack_file(self, folder: Path, **job: object) -> None:
        section = {"env": {"UV_DEFAULT_INDEX": self.index.url}, **job}
        (folder / "tpuctl.yaml").write_text(
            f"stack: {self.stack}\nproject: {{id: local-project}}\n"
            f"tpu: {{type: {self.type_name}, runtime: {self.runtime}, zones: [{self.zone}]}}\n"
            f"network: {{ssh: {self.network}}}\njob: {json.dumps(section)}\n",
            "utf-8",
        )

    def run_uv(self, folder: Path, *arguments: str) -> None:
        """Run uv on an author's computer, on which Python 3.12 is."""
        interpreter = find(["3.12"])
        assert interpreter is not None
        subprocess.run(
            [uv_path(), *arguments, "--quiet", "--python", interpreter.path],
            cwd=folder,
            env={**os.environ, **self.environment},
            check=True,
        )

    def tpuctl(self, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run tpuctl in a project's folder."""
        return run_tpuctl(*arguments, folder=folder, timeout=300, **self.environment)

    def run(self, folder: Path, *options: str) -> JobOutput:
        """Run the project's script."""
        done = self.tpuctl(folder, "run", *options, "train.py")
        return JobOutput(done.stdout, " ".join(done.stderr.split()), done.returncode)

    def run_successfully(self, folder: Path, *options: str) -> JobOutput:
        output = self.run(folder, *options)
        assert output.exit_code == 0, output.story + output.log
        return output

    def error(self, folder: Path, *arguments: str) -> str:
        """The only error of a command that changes nothing, in one line. The check's summary, that
        the script was not submitted, is none of its own."""
        done = self.tpuctl(folder, *arguments)
        assert done.returncode != 0, done.stderr
        _, *errors = f"\n{done.stderr}".split("\nerror: ")
        errors = [error for error in errors if not error.startswith("Script was not submitted")]
        assert len(errors) == 1, done.stderr
        return " ".join(errors[0].split())


@contextmanager
def laboratory(
    folder: Path, minors: Sequence[str] = ("3.12", "3.13"), **settings: str
) -> Iterator[Laboratory]:
    """A laboratory without a stack yet; its index has a few small packages."""
    wheels = folder / "index"
    wheels.mkdir(parents=True)
    for version in ("1.0", "1.1", "2.0"):
        make_wheel(wheels, "plain", version)
    make_wheel(wheels, "helper", "1.0", requires=["plain"])
    make_wheel(wheels, "modern", "3.0", requires_python=">=3.12")
    make_wheel(wheels, "jax", "0.8.1", requires=["plain"], requires_python=">=3.11")
    make_wheel(wheels, "jax", "0.6.2", requires_python=">=3.10")
    for name in ("devtool", "accelerator", "manual"):
        make_wheel(wheels, name, "1.0")
    with python_mirror(folder / "mirror", minors) as mirror, package_index(wheels) as index:
        yield Laboratory(folder, mirror, index, **settings)
