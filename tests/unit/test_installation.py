"""Dependencies according to a stack file and a job's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tpuctl.errors import Usage
from tpuctl.jobs.installation import named_files, read_installation
from tpuctl.model.installation import Installation
from tpuctl.model.schema import JobSection

BUILT = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
PYPROJECT = '[project]\nname = "my-model"\nversion = "1"\ndependencies = ["einops>=0.7", "rich"]\n'
EXTRAS = """[project.optional-dependencies]
tpu = ["jax[tpu]==0.4.30"]
train = ["optax", "rich"]
Every_thing = ["my_model[tpu, train]", "My-Model[every-thing]", "tqdm"]
"""


def read(folder: Path, **job: Any) -> Installation:
    return read_installation(JobSection(**job), folder)


def test_folder_without_requirements_needs_nothing(tmp_path: Path) -> None:
    assert read(tmp_path) == Installation()
    # Older stack files name it by default: it may be missing.
    assert read(tmp_path, requirements="requirements.txt") == Installation()


def test_requirements_file_takes_precedence_over_project(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("tqdm\n")
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    assert read(tmp_path) == Installation(requirements="requirements.txt")
    assert read(tmp_path, requirements=None) == Installation()
    project = Installation(dependencies=("einops>=0.7", "rich"))
    assert read(tmp_path, requirements="pyproject.toml") == project
    (tmp_path / "requirements.txt").unlink()
    assert read(tmp_path) == project


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[tool.ruff]\nline-length = 100\n", Installation()),
        (PYPROJECT, Installation(dependencies=("einops>=0.7", "rich"))),
        (PYPROJECT + BUILT, Installation(dependencies=("einops>=0.7", "rich"), project=".")),
        ('[project]\nname = "m"\nversion = "1"\n' + BUILT, Installation(project=".")),
        # Only a build backend knows the dependencies: pip installs the project itself.
        (
            '[project]\nname = "m"\ndynamic = ["version", "dependencies"]\n' + BUILT,
            Installation(dependencies=("./.",)),
        ),
        ('[tool.poetry]\nname = "m"\n' + BUILT, Installation(dependencies=("./.",))),
    ],
)
def test_project_with_build_system_is_installed(
    tmp_path: Path, text: str, expected: Installation
) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    assert read(tmp_path) == expected


@pytest.mark.parametrize(
    ("extras", "more"),
    [
        ("tpu", ("jax[tpu]==0.4.30",)),
        ("tpu, train", ("jax[tpu]==0.4.30", "optax")),
        ("every-thing", ("jax[tpu]==0.4.30", "optax", "tqdm")),
    ],
)
def test_project_extras(tmp_path: Path, extras: str, more: tuple[str, ...]) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/pyproject.toml").write_text(PYPROJECT + EXTRAS + BUILT)
    install = read(tmp_path, requirements=f"sub/pyproject.toml[{extras}]")
    assert install == Installation(dependencies=("einops>=0.7", "rich", *more), project="sub")


def test_wheels_folder_is_default_or_configured(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    assert read(tmp_path) == Installation()
    (tmp_path / "wheels/tqdm-4.0-py3-none-any.whl").touch()
    assert read(tmp_path) == Installation(wheels="wheels")
    assert read(tmp_path, wheels=None) == Installation()
    (tmp_path / "deep/vendor").mkdir(parents=True)
    (tmp_path / "deep/vendor/tqdm-4.0-py3-none-any.whl").touch()
    assert read(tmp_path, wheels="deep/vendor/") == Installation(wheels="deep/vendor")


def test_configured_files_are_uploaded_even_if_ignored(tmp_path: Path) -> None:
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor/tqdm-4.0-py3-none-any.whl").touch()
    (tmp_path / "requirements-tpu.txt").touch()
    job = JobSection(requirements="requirements-tpu.txt", wheels="vendor")
    patterns = named_files(job, read_installation(job, tmp_path))
    assert patterns == ("/requirements-tpu.txt", "/vendor/*.whl")
    (tmp_path / "vendor").rename(tmp_path / "wheels")
    (tmp_path / "requirements-tpu.txt").rename(tmp_path / "requirements.txt")
    usual = read(tmp_path)
    assert usual == Installation(requirements="requirements.txt", wheels="wheels")
    assert named_files(JobSection(), usual) == ()


@pytest.mark.parametrize(
    ("job", "project", "where", "message"),
    [
        ({"requirements": "other.txt"}, "", "job.requirements", "other.txt not found"),
        ({"requirements": "../up.txt"}, "", "job.requirements", "outside the uploaded folder"),
        ({"requirements": "/etc/passwd"}, "", "job.requirements", "outside the uploaded folder"),
        ({"requirements": "given.txt[tpu]"}, "", "job.requirements", "a requirements file"),
        ({"wheels": "vendor"}, "", "job.wheels", "no wheels in"),
        ({"requirements": "pyproject.toml[gpu]"}, PYPROJECT + EXTRAS, "job.requirements", "it has"),
        ({"requirements": "pyproject.toml[gpu]"}, BUILT, "job.requirements", "no extra 'gpu'"),
        ({}, "[project\n", "pyproject.toml", "line 1"),
        ({}, '[project]\nname = "m"\ndependencies = "rich"\n', "pyproject.toml", "a list"),
        ({}, '[project]\nname = "m"\ndependencies = ["-e ."]\n', "pyproject.toml", "-e ."),
        (
            {"requirements": "pyproject.toml[tpu]"},
            '[project]\nname = "m"\noptional-dependencies = ["tpu"]\n',
            "pyproject.toml",
            "optional-dependencies",
        ),
    ],
)
def test_invalid_installation_is_rejected(
    tmp_path: Path, job: dict[str, Any], project: str, where: str, message: str
) -> None:
    (tmp_path / "given.txt").touch()
    if project:
        (tmp_path / "pyproject.toml").write_text(project)
    with pytest.raises(Usage) as caught:
        read(tmp_path, **job)
    assert caught.value.diagnostics[0].where.endswith(where)
    assert message in caught.value.diagnostics[0].detail
