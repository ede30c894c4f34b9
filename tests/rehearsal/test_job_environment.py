"""Environments of jobs with their own Python or a lock: exactly what the job asks for."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.prerequisites import other_interpreter
from tests.support.wheels import make_project, make_wheel
from tpuctl.errors import RemoteFailed
from tpuctl.flows.preflight.job_interpreter import CPU_PACKAGES
from tpuctl.interpreters import current
from tpuctl.jobs.requirements.uv_program import uv_path
from tpuctl.local_cloud.machine_images import ImageStore
from tpuctl.model.jobs.installation import Installation, LockFile, PythonBuild, Tool
from tpuctl.preflight.rehearsal.job_packages import Packages, install

UV = Tool(key="uv-0.13.9-x86_64", version="0.13.9")
VERSIONS = """
import importlib.metadata, json, sys
packages = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
print(json.dumps([sys.version.split()[0], packages]))
"""


def own_python() -> PythonBuild:
    """A build of the version of another Python of this computer."""
    version = other_interpreter().version
    key = f"cpython-{version}-linux-x86_64-gnu"
    return PythonBuild(key=f"{key}-20261110", version=version, request=key)


@dataclass
class Job:
    """A job's folder, with wheels that its projects are locked to."""

    folder: Path
    reports: list[str] = field(default_factory=list)

    @property
    def code(self) -> Path:
        return self.folder / "code"

    def wheel(self, name: str, version: str, **options: Any) -> None:
        make_wheel(self.code / "wheels", name, version, **options)

    def lock(self, *dependencies: str, extra: str = "") -> None:
        """Write a pyproject.toml, and have uv lock it."""
        (self.code / "pyproject.toml").write_text(
            '[project]\nname = "job"\nversion = "1"\nrequires-python = ">=3.8"\n'
            f"dependencies = {json.dumps(dependencies)}\n"
            f'[tool.uv]\nno-index = true\nfind-links = ["wheels"]\n{extra}',
            "utf-8",
        )
        self.run_uv("lock")

    def run_uv(self, *arguments: str) -> None:
        command = [uv_path(), *arguments, "--quiet", "--offline", "--python", current().path]
        subprocess.run(command, cwd=self.code, check=True)

    def install(
        self,
        installation: Installation,
        python: Path | None = None,
        code: Path | None = None,
        replaced: Mapping[str, str] | None = None,
        **variables: str,
    ) -> Packages:
        """Install with these further variables, without a network."""
        offline = {"PATH": "/usr/bin:/bin", "UV_OFFLINE": "1", "PIP_NO_INDEX": "1"}
        work = install(
            python or Path(other_interpreter().path),
            installation,
            code or self.code,
            "0" * 64,
            uv=uv_path(),
            folder=self.folder / f"working-{len(list(self.folder.iterdir()))}",
            variables={**offline, "HOME": str(self.folder / "home"), **variables},
            report=self.reports.append,
            replaced=replaced,
        )
        return asyncio.run(work)


def installed(packages: Packages) -> tuple[str, dict[str, str]]:
    """The version of the Python, and the packages that it sees."""
    command = [str(packages.python), "-I", "-c", VERSIONS]
    version, versions = json.loads(subprocess.check_output(command))
    return version, versions


@pytest.fixture
def job(tmp_path: Path) -> Job:
    job = Job(tmp_path)
    job.code.mkdir()
    return job


@pytest.fixture(scope="module")
def image() -> Path:
    folder = asyncio.run(ImageStore().ensure(None, print))
    return folder / "bin" / "python3"


UV_LOCK = LockFile(path="uv.lock", form="uv")


def test_lock_is_installed_exactly_without_what_only_tpus_use(job: Job) -> None:
    for name, version in [("jax", "0.12.1"), ("libtpu", "0.0.50"), ("tensorflow_tpu", "2.21.0")]:
        job.wheel(name, version)
    job.wheel("plain", "1.0")
    job.wheel("linter", "1.0")
    job.lock("jax", "libtpu", "tensorflow-tpu", "plain", extra='dev-dependencies = ["linter"]\n')
    job.wheel("plain", "2.0")  # since then, there is a newer one
    job.wheel("tensorflow", "2.21.0")
    shutil.copytree(job.code / "wheels", job.folder / "links")
    packages = job.install(
        Installation(lock=UV_LOCK, python=own_python()),
        replaced=CPU_PACKAGES,
        PIP_FIND_LINKS=str(job.folder / "links"),
    )
    version, versions = installed(packages)
    assert version == other_interpreter().version
    assert versions == {"jax": "0.12.1", "plain": "1.0", "tensorflow": "2.21.0"}
    assert set(packages.left_out) == {"libtpu 0.0.50", "tensorflow-tpu 2.21.0"}


def test_lock_with_changed_wheel_is_refused(job: Job) -> None:
    job.wheel("plain", "1.0")
    wheel = next((job.code / "wheels").iterdir())
    (job.code / "pylock.toml").write_text(
        'lock-version = "1.0"\ncreated-by = "test"\n[[packages]]\nname = "plain"\n'
        f'version = "1.0"\nwheels = [{{path = "wheels/{wheel.name}", '
        f'hashes = {{sha256 = "{"0" * 64}"}}}}]\n',
        "utf-8",
    )
    lock = LockFile(path="pylock.toml", form="pylock")
    with pytest.raises(RemoteFailed, match="Installing requirements failed") as caught:
        job.install(Installation(lock=lock, python=own_python()))
    [diagnostic] = caught.value.diagnostics
    assert "plain" in diagnostic.detail and "0" * 64 in diagnostic.detail
    assert diagnostic.where == "pylock.toml"
    assert not list((job.folder / "home").glob(".tpuctl/envs/*/"))


def test_groups_and_extras_of_the_lock_are_installed_on_request(job: Job) -> None:
    for name in ("plain", "grouped", "additional"):
        job.wheel(name, "1.0")
    groups = '[dependency-groups]\ndata = ["grouped"]\n'
    extras = '[project.optional-dependencies]\nmore = ["additional"]\n'
    job.lock("plain", extra=groups + extras)
    lock = UV_LOCK.model_copy(update={"groups": ("data",), "extras": ("more",)})
    assert set(installed(job.install(Installation(lock=lock, python=own_python())))[1]) == {
        *("plain", "grouped", "additional")
    }


def test_lock_of_a_script_is_installed(job: Job) -> None:
    job.wheel("plain", "1.0")
    (job.code / "train.py").write_text(
        '# /// script\n# requires-python = ">=3.8"\n# dependencies = ["plain"]\n'
        "# [tool.uv]\n# no-index = true\n"
        '# find-links = ["wheels"]\n# ///\n',
        "utf-8",
    )
    job.run_uv("lock", "--script", "train.py")
    lock = LockFile(path="train.py.lock", form="script", script="train.py")
    installation = Installation(lock=lock, python=own_python())
    assert installed(job.install(installation))[1] == {"plain": "1.0"}


def test_environment_is_created_once_for_its_content(job: Job) -> None:
    job.wheel("plain", "1.0")
    job.lock("plain")
    installation = Installation(lock=UV_LOCK, python=own_python())
    first = job.install(installation)
    (first.python.parents[1] / "kept").touch()
    elsewhere = job.folder / "elsewhere"
    shutil.copytree(job.code, elsewhere)  # as for the next rehearsal
    again = job.install(installation, code=elsewhere)
    assert again.python == first.python
    assert (again.python.parents[1] / "kept").exists()
    job.wheel("other", "1.0")
    job.lock("plain", "other")
    assert job.install(installation).python != first.python


def test_members_and_project_are_installed_beside_the_lock(job: Job) -> None:
    job.wheel("plain", "1.0")
    job.lock("plain")
    for name in ("library", "application"):
        make_project(job.code / name, name, f"def say():\n    print({name!r})\n")
    packages = job.install(
        Installation(lock=UV_LOCK, members=("library",), project="application", uv=UV)
    )
    [layer] = packages.modules
    command = [packages.python, "-c", "import application, library; library.say()"]
    output = subprocess.check_output(command, env={"PYTHONPATH": layer})
    assert output == b"library\n"
    assert (Path(packages.programs[0]) / "say-application").exists()


@pytest.mark.parametrize("uv", [UV, None], ids=["uv", "pip"])
def test_requirements_are_installed_for_the_jobs_python_without_a_lock(
    job: Job, uv: Tool | None
) -> None:
    job.wheel("plain", "1.0")
    job.wheel("further", "1.0")
    (job.code / "requirements.txt").write_text("plain\n", "utf-8")
    installation = Installation(
        requirements="requirements.txt",
        wheels="wheels",
        packages=("further",),
        python=own_python(),
        uv=uv,
    )
    version, versions = installed(job.install(installation))
    assert version == other_interpreter().version
    assert {"plain", "further"} <= versions.keys()
    assert ("pip" in versions) == (uv is None)


def test_python_without_packages_sees_none(job: Job) -> None:
    packages = job.install(Installation(python=own_python()))
    assert installed(packages) == (other_interpreter().version, {})


def test_uv_keeps_packages_of_the_image(job: Job, image: Path) -> None:
    """Those of an image with TensorFlow, too, whose names others depend on."""
    base = job.folder / "image"
    subprocess.run([image, "-m", "venv", "--without-pip", base], check=True)
    [site] = base.glob("lib/python*/site-packages")
    image_wheels = job.folder / "image-wheels"
    make_wheel(image_wheels, "tensorflow_tpu", "2.18.0", module="tensorflow", requires=["numeric"])
    make_wheel(image_wheels, "numeric", "1.0")
    make_wheel(image_wheels, "replaced", "1.0")
    make_wheel(image_wheels, "dependent", "1.0", requires=["lacking"])
    command = [
        uv_path(),
        "pip",
        "install",
        "--no-deps",
        "--offline",
        "--quiet",
        "--target",
        str(site),
    ]
    subprocess.run([*command, *image_wheels.iterdir()], check=True)
    job.wheel("needing", "1.0", requires=["tensorflow>=2", "numeric", "replaced>=2", "dependent"])
    job.wheel("lacking", "1.0")
    job.wheel("numeric", "2.0")
    job.wheel("replaced", "2.0")
    packages = job.install(
        Installation(packages=("needing",), wheels="wheels", uv=UV),
        python=base / "bin" / "python3",
    )
    [folder] = packages.python.parents[1].glob("lib/python*/site-packages")
    assert {path.name for path in folder.glob("*.dist-info")} == {
        *("needing-1.0.dist-info", "replaced-2.0.dist-info", "tensorflow-2.18.0.dist-info"),
        "lacking-1.0.dist-info",
    }
    program = "import numeric, replaced, tensorflow; print(numeric.__version__, "
    program += "replaced.__version__, tensorflow.from_wheel)"
    output = subprocess.check_output([packages.python, "-I", "-c", program], text=True)
    assert output.split() == ["1.0", "2.0", "tensorflow_tpu"]
