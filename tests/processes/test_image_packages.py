"""Jobs whose packages exist for the Python of a local machine, but not for its real image's.

uv itself resolves them, from folders of wheels.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.wheels import make_wheel
from tpuctl.errors import Refused
from tpuctl.flows.packages.image_packages import require_installable_on_image
from tpuctl.jobs.requirements.installation import read_installation
from tpuctl.model.jobs.installation import Installation, PythonBuild
from tpuctl.model.stack.schema import JobSection

IMAGE, MACHINE = "3.10", "3.11"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job's folder with wheels, of which two need a newer Python than the image's."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    job = tmp_path / "job"
    job.mkdir()
    wheels = job / "wheels"
    make_wheel(wheels, "plain", "1.0")
    make_wheel(wheels, "stepped", "1.0")
    make_wheel(wheels, "stepped", "2.0", requires_python=">=3.11")
    make_wheel(wheels, "modern", "1.0", requires_python=">=3.11")
    make_wheel(wheels, "above", "1.0", requires=["modern"])
    return job


def check(folder: Path, script: Path | None = None, image: str = IMAGE) -> Installation:
    installation = read_installation(JobSection(), folder, script)
    require_installable_on_image(image, MACHINE, installation, folder, script)
    return installation


@pytest.mark.parametrize(
    ("requirement", "text"),
    [("modern", "modern"), ("stepped>=2", "stepped>=2"), ("above == 1.0", "above== 1.0")],
)
def test_requirement_is_refused_with_its_line(folder: Path, requirement: str, text: str) -> None:
    (folder / "requirements.txt").write_text(f"# what it needs\nplain\n{requirement}\n")
    with pytest.raises(Refused) as error:
        check(folder)
    diagnostic = error.value.diagnostics[0]
    assert diagnostic.where == f"{folder / 'requirements.txt'}:3"
    assert diagnostic.detail == (
        f"the image has Python 3.10, for which {text} cannot be installed; this computer's machine "
        "has Python 3.11"
    )
    assert diagnostic.hint.splitlines()[-1] == '    job: {python: "3.11"}'


def test_dependency_of_project_is_refused_with_its_line(folder: Path) -> None:
    project = folder / "pyproject.toml"
    project.write_text('[project]\nname = "job"\nversion = "1"\ndependencies = [\n  "modern",\n]\n')
    with pytest.raises(Refused, match="modern cannot be installed") as error:
        check(folder)
    assert error.value.diagnostics[0].where == f"{project}:5"


def test_dependency_of_script_is_refused_with_its_line(folder: Path) -> None:
    script = folder / "train.py"
    script.write_text('# /// script\n# dependencies = [\n#   "modern",\n# ]\n# ///\n')
    with pytest.raises(Refused, match="modern cannot be installed") as error:
        check(folder, script)
    assert error.value.diagnostics[0].where == f"{script}:3"


@pytest.mark.parametrize("build_system", ["", "[build-system]\nrequires = []\n"])
def test_required_python_is_refused_with_its_line(folder: Path, build_system: str) -> None:
    project = folder / "pyproject.toml"
    text = '[project]\nname = "job"\nversion = "1"\nrequires-python = ">=3.12"\n'
    project.write_text(f'{text}dependencies = ["plain"]\n{build_system}')
    with pytest.raises(Refused, match=r"has Python 3\.10, and the job requires >=3\.12;") as error:
        check(folder)
    assert error.value.diagnostics[0].where == f"{project}:4"
    assert error.value.diagnostics[0].hint.endswith('job: {python: ">=3.12"}')


@pytest.mark.parametrize(
    "requirement", ["plain", "stepped", "unknown", "modern; python_version<'3'"]
)
def test_what_fits_both_or_neither_is_accepted(folder: Path, requirement: str) -> None:
    (folder / "requirements.txt").write_text(f"{requirement}\n")
    check(folder)


def test_nothing_is_asked_where_machine_has_the_image_s_python(folder: Path) -> None:
    (folder / "requirements.txt").write_text("modern\n")
    installation = check(folder, image=MACHINE)
    build = PythonBuild(key="cpython-3.12.1", version="3.12.1", request="cpython-3.12.1")
    brought = installation.model_copy(update={"python": build})
    require_installable_on_image(IMAGE, MACHINE, brought, folder)


def test_index_that_does_not_answer_refuses_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wheel in (folder / "wheels").iterdir():
        wheel.unlink()
    (folder / "requirements.txt").write_text("modern\n")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    assert check(folder).wheels is None
