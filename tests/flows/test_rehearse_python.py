"""Rehearsals of jobs that bring a Python and a lock: they run on these, and say so."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.flows.test_rehearse import WITHOUT_TENSORFLOW, RehearseCommand
from tests.flows.test_rehearse_jax import COMPILED
from tests.support.prerequisites import skip_or_fail
from tests.support.wheels import make_project, make_wheel
from tpuctl.api import Tpuctl
from tpuctl.errors import Refused, Usage
from tpuctl.flows.preflight.compile import compile_script
from tpuctl.flows.preflight.job_interpreter import job_interpreter
from tpuctl.flows.preflight.rehearse import RehearsalOptions
from tpuctl.interpreters import Interpreter, find
from tpuctl.jobs.requirements.uv_program import uv_path
from tpuctl.model.events import Event, Note
from tpuctl.model.jobs.installation import Installation, LockFile, PythonBuild

SCRIPT = """
import importlib.metadata
import sys

names = ["plain", "libtpu", "demo"]
versions = {name: None for name in names}
for name in names:
    try:
        versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print("VERSIONS", sys.version.split()[0], versions)
"""


@functools.cache
def python_3_12() -> Interpreter:
    interpreter = find(("3.12",))
    if interpreter is None:
        skip_or_fail("no Python 3.12 was found on PATH, in pyenv or in uv")
    return interpreter


def build_of(version: str) -> PythonBuild:
    request = f"cpython-{version}-linux-x86_64-gnu"
    return PythonBuild(key=f"{request}-20261110", version=version, request=request)


def write_project(folder: Path, settings: str = "") -> Path:
    """A package whose lock has fixed versions that are not the newest; returns its script.

    `settings` are further lines of its pyproject.toml.
    """
    folder.mkdir(exist_ok=True)
    for name, version in (("plain", "1.0"), ("libtpu", "0.0.50")):
        make_wheel(folder / "locked", name, version)
    make_project(folder, "demo", "", dependencies=["plain", "libtpu"])
    text = (folder / "pyproject.toml").read_text("utf-8")
    text = text.replace("[project]\n", '[project]\nrequires-python = "==3.12.*"\n')
    (folder / "pyproject.toml").write_text(text + settings, "utf-8")
    command = [uv_path(), "lock", "--offline", "--quiet", "--python", python_3_12().path]
    command += ["--no-index", "--find-links=locked"]
    subprocess.run(command, cwd=folder, check=True)
    make_wheel(folder / "locked", "plain", "2.0")
    script = folder / "train.py"
    script.write_text(SCRIPT, "utf-8")
    return script


LOCKED = Installation(lock=LockFile(path="uv.lock", form="uv"), project=".")


def printed(log: Path) -> str:
    [line] = [line for line in log.read_text("utf-8").splitlines() if line.startswith("VERSIONS")]
    return line


def expected() -> str:
    versions = {"plain": "1.0", "libtpu": None, "demo": "1.0"}
    return f"VERSIONS {python_3_12().version} {versions}"


async def test_script_runs_on_the_jobs_python_with_the_locks_packages(
    make_stack: Callable[..., Tpuctl], tmp_path: Path, events: list[Event]
) -> None:
    stack = make_stack(**WITHOUT_TENSORFLOW)
    submission = stack.submission(write_project(tmp_path / "project"), check=False)
    build = build_of(python_3_12().version)
    installation = LOCKED.model_copy(update={"python": build})
    rehearsal = await stack.rehearse(
        replace(submission, installation=installation, include=("locked/", "uv.lock")),
        RehearsalOptions(),
    )
    [only] = rehearsal.passes
    assert printed(only.log) == expected()
    notes = [event.text for event in events if isinstance(event, Note)]
    assert f"The script runs on Python {build.version}, as the job does." in notes
    assert rehearsal.skipped == ("libtpu 0.0.50 of uv.lock was not installed: only TPUs use it",)
    assert rehearsal.written is None  # not even what installers need


async def test_another_patch_of_the_jobs_python_is_a_limitation(
    make_stack: Callable[..., Tpuctl], tmp_path: Path, events: list[Event]
) -> None:
    stack = make_stack(**WITHOUT_TENSORFLOW)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, "utf-8")
    submission = replace(
        stack.submission(script), installation=Installation(python=build_of("3.12.99"))
    )
    rehearsal = await stack.rehearse(submission, RehearsalOptions())
    version = python_3_12().version
    assert printed(rehearsal.passes[0].log).startswith(f"VERSIONS {version} ")
    assert rehearsal.skipped == (f"rehearsed with Python {version}; the job runs on 3.12.99",)
    with pytest.raises(Usage, match="does not use the image's TensorFlow"):
        await stack.rehearse(submission, RehearsalOptions(tensorflow="2.18.0"))


async def test_missing_python_is_one_error_after_the_question() -> None:
    questions: list[str] = []

    def decline(question: str) -> bool:
        questions.append(question)
        return False

    def emit(event: Event) -> None:
        raise AssertionError(event)

    with pytest.raises(Refused, match="The job's Python is not installed here") as caught:
        await job_interpreter(build_of("3.99.1"), emit, decline)
    [diagnostic] = caught.value.diagnostics
    assert "uv python install 3.99" in diagnostic.hint
    assert questions == [
        "The job runs on Python 3.99.1, which is not installed. Download it with uv?"
    ]


async def test_same_version_is_preferred_among_those_of_a_minor() -> None:
    version = python_3_12().version
    interpreter = await job_interpreter(build_of(version), print, lambda question: False)
    assert interpreter.version == version
    command = [interpreter.path, "-I", "-c", "import platform; print(platform.python_version())"]
    assert subprocess.check_output(command, text=True).strip() == version


@pytest.mark.soak  # installs JAX once
@pytest.mark.timeout(900)
@pytest.mark.parametrize("requirement", ["jax[tpu]", "jax"])
async def test_step_is_compiled_by_the_locks_jax_on_the_jobs_python(
    tmp_path: Path, requirement: str
) -> None:
    """JAX 0.12 needs Python 3.12; without libtpu in the lock, the one for its JAX is added."""
    script = tmp_path / "train.py"
    script.write_text(COMPILED, "utf-8")
    (tmp_path / "pyproject.toml").write_text(
        f'[project]\nname = "demo"\nversion = "1"\nrequires-python = ">=3.12"\n'
        f'dependencies = ["{requirement}>=0.12"]\n',
        "utf-8",
    )
    command = [uv_path(), "lock", "--quiet", "--python", python_3_12().path]
    subprocess.run(command, cwd=tmp_path, check=True)
    report = await compile_script(
        script, (), None, print, type_name="v5litepod-4", batch=128, python="3.12"
    )
    assert (report.exit_code, report.function) == (0, "train_step"), report
    assert report.jax is not None and report.jax.startswith("0.12.")
    assert report.requested is not None and report.requested.sizes is not None
    assert report.variable_bytes == 3 * 4 * 4 * (512 * 512 + 512)


async def test_tensorflow_of_the_compiler_does_not_run_on_every_python(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import tensorflow\n", "utf-8")
    with pytest.raises(Refused, match="does not run on the job's Python") as caught:
        await compile_script(script, (), None, print, type_name="v3-8", python="3.13")
    [diagnostic] = caught.value.diagnostics
    assert "requires Python 3.11 or 3.12, and the job runs on Python 3.13" in diagnostic.detail
    assert "--python 3.12" in diagnostic.hint


def test_project_is_rehearsed_as_its_files_say(
    make_stack: Callable[..., Tpuctl],
) -> None:
    """Nothing but requires-python and uv.lock says what the job needs."""
    command = RehearseCommand(make_stack(**WITHOUT_TENSORFLOW))
    write_project(command.folder, '[tool.uv]\nno-index = true\nfind-links = ["locked"]\n')
    code, data = command.data("--no-check", "train.py")
    assert code == 0
    assert printed(Path(data["runs"][0]["log"])) == expected()
