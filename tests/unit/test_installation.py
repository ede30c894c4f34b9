"""Dependencies according to a stack file and a job's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tpuctl.errors import Refused, Usage
from tpuctl.jobs.requirements.installation import named_files, read_installation
from tpuctl.model.jobs.installation import Installation
from tpuctl.model.scripts.requirement_files import required
from tpuctl.model.stack.schema import JobSection

BUILT = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
PYPROJECT = '[project]\nname = "my-model"\nversion = "1"\ndependencies = ["einops>=0.7", "rich"]\n'
EXTRAS = """[project.optional-dependencies]
tpu = ["jax[tpu]==0.4.30"]
train = ["optax", "rich"]
Every_thing = ["my_model[tpu, train]", "My-Model[every-thing]", "tqdm"]
"""


def read(folder: Path, **job: Any) -> Installation:
    return read_installation(JobSection(**job), folder)


def test_requirements_file_takes_precedence_over_project(tmp_path: Path) -> None:
    assert read(tmp_path) == Installation()
    # Older stack files name it by default: it may be missing.
    assert read(tmp_path, requirements="requirements.txt") == Installation()
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


GROUPS = """[dependency-groups]
dev = ["pytest"]
Fast_Data = ["grain", {include-group = "dev"}]
"""


def test_project_dependency_groups(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT + EXTRAS + GROUPS)
    install = read(tmp_path, requirements="pyproject.toml[tpu, fast-data]")
    assert install.dependencies == ("einops>=0.7", "rich", "jax[tpu]==0.4.30", "grain", "pytest")
    assert read(tmp_path).dependencies == ("einops>=0.7", "rich")
    # A project without dependencies of its own.
    (tmp_path / "pyproject.toml").write_text(GROUPS)
    assert read(tmp_path, requirements="pyproject.toml[dev]").dependencies == ("pytest",)


def test_name_of_an_extra_and_a_group_says_which(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        PYPROJECT + EXTRAS + '[dependency-groups]\ntpu = ["libtpu"]\n'
    )
    with pytest.raises(Usage, match="an extra and a dependency group 'tpu'") as caught:
        read(tmp_path, requirements="pyproject.toml[tpu]")
    assert "'pyproject.toml[group:tpu]'" in caught.value.diagnostics[0].hint
    for name, package in (("extra:tpu", "jax[tpu]==0.4.30"), ("group:tpu", "libtpu")):
        install = read(tmp_path, requirements=f"pyproject.toml[{name}]")
        assert install.dependencies[2:] == (package,)
    with pytest.raises(Usage, match=r"extras: .*tpu, train; groups: tpu"):
        read(tmp_path, requirements="pyproject.toml[group:train]")


def test_group_that_includes_itself_is_invalid(tmp_path: Path) -> None:
    group = '[dependency-groups]\na = [{include-group = "b"}]\nb = [{include-group = "a"}]\n'
    (tmp_path / "pyproject.toml").write_text(group)
    with pytest.raises(Usage, match="includes itself"):
        read(tmp_path, requirements="pyproject.toml[a]")


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
        ({"requirements": "pyproject.toml[gpu]"}, BUILT, "job.requirements", "group 'gpu'"),
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


# Sources that pip does not know ---------------------------------------------------------------

HELPER = '[project]\nname = "helper"\nversion = "1"\n' + BUILT


def project_with(folder: Path, text: str, **members: str) -> None:
    """A pyproject.toml with the dependency `helper`, and packages in `libs`."""
    head = '[project]\nname = "app"\nversion = "1"\ndependencies = ["helper[fast]>=1", "rich"]\n'
    (folder / "pyproject.toml").write_text(head + text)
    for name, content in members.items():
        (folder / "libs" / name).mkdir(parents=True)
        (folder / "libs" / name / "pyproject.toml").write_text(content)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('{ path = "libs/helper" }', "./libs/helper[fast]"),
        ('{ path = "libs/helper", editable = true }', "./libs/helper[fast]"),
        ("{ workspace = true }", "./libs/helper[fast]"),
        (
            '{ git = "https://example.com/helper.git", tag = "v1", subdirectory = "python" }',
            "helper[fast] @ git+https://example.com/helper.git@v1#subdirectory=python",
        ),
        (
            '{ git = "git@example.com:team/helper.git" }',
            "helper[fast] @ git+ssh://git@example.com/team/helper.git",
        ),
        ('{ url = "https://example.com/h.whl" }', "helper[fast] @ https://example.com/h.whl"),
    ],
)
@pytest.mark.parametrize("table", ["tool.uv.sources", "tool.poetry.dependencies"])
def test_sources_are_passed_to_pip(tmp_path: Path, table: str, source: str, expected: str) -> None:
    if "workspace" in source and "poetry" in table:
        return
    project_with(tmp_path, f"[{table}]\nHelper = {source}\n", helper=HELPER)
    assert read(tmp_path).dependencies == (expected, "rich")


def test_packages_needed_by_a_local_package_are_local_too(tmp_path: Path) -> None:
    """pip would look for `base`, which `helper` requires, in the public index."""
    needing = HELPER.replace('version = "1"\n', 'version = "1"\ndependencies = ["base"]\n')
    base = HELPER.replace("helper", "base")
    base_source = '[tool.uv.sources]\nbase = { path = "../base" }\n'
    project_with(
        tmp_path,
        '[tool.uv.sources]\nhelper = { path = "libs/helper" }\n',
        helper=needing + base_source,
        base=base,
    )
    assert read(tmp_path).dependencies == ("./libs/helper[fast]", "./libs/base", "rich")


def test_project_folder_in_addresses(tmp_path: Path) -> None:
    (tmp_path / "libs/helper").mkdir(parents=True)
    for folder in ("file:///${PROJECT_ROOT}", "{root:uri}"):
        address = f"{folder}/libs/helper"
        dependencies = f'dependencies = ["helper[fast] @ {address}"]\n'
        (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "a"\n{dependencies}')
        assert read(tmp_path).dependencies == ("./libs/helper[fast]",)


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        (
            '[tool.uv.sources]\nrich = { path = "x" }\nhelper = { path = "../h" }\n',
            7,
            "sources.helper",
        ),
        ('[tool.uv.sources]\nhelper = { path = "libs/absent" }\n', 6, "sources.helper"),
        ("[tool.uv.sources]\nhelper = { workspace = true }\n", 6, "sources.helper"),
        ('[tool.uv.sources]\nhelper = { index = "own" }\n', 6, "sources.helper"),
        ('[tool.uv.sources.helper]\nindex = "own"\n', 5, "sources.helper"),
        ('[tool.uv.sources]\nhelper = [{ index = "a", marker = "x" }]\n', 6, "sources.helper"),
        (
            '[tool.poetry.dependencies]\nhelper = { version = "1", source = "own" }\n',
            6,
            "tool.poetry.dependencies.helper",
        ),
        ('[[tool.uv.index]]\nurl = "https://u:hunter2@own.example/"\n', 6, "tool.uv.index"),
        ('[[tool.uv.index]]\nurl = "https://own.example/"\n', 6, "tool.uv.index"),
        ('[tool.uv]\nindex-url = "https://own.example/"\n', 6, "tool.uv.index-url"),
        ('[[tool.poetry.source]]\nname = "o"\nurl = "https://own.example/"\n', 7, "poetry.source"),
        ('[[tool.pdm.source]]\nurl = "https://own.example/"\nname = "o"\n', 6, "tool.pdm.source"),
        (
            '[tool.uv.sources]\nhatchling = { path = "libs" }\n' + BUILT,
            6,
            "tool.uv.sources.hatchling",
        ),
    ],
)
def test_other_sources_are_refused_by_name(tmp_path: Path, text: str, line: int, key: str) -> None:
    project_with(tmp_path, text)
    (tmp_path / "x").mkdir()
    with pytest.raises(Refused) as caught:
        read(tmp_path)
    (diagnostic,) = caught.value.diagnostics
    assert key in diagnostic.detail
    assert diagnostic.where == f"{tmp_path / 'pyproject.toml'}:{line}"
    assert diagnostic.hint
    assert "hunter2" not in str(diagnostic)


PUBLIC_INDEX = ".".join(("pypi", "org"))


@pytest.mark.parametrize(
    "text",
    [
        '[tool.uv.sources]\nunused = { index = "own" }\n',
        '[[tool.uv.index]]\nname = "own"\nurl = "https://own.example/"\nexplicit = true\n',
        f'[[tool.uv.index]]\nurl = "https://{PUBLIC_INDEX}/simple"\n',
        '[tool.poetry.dependencies]\npython = "^3.10"\nhelper = "^1"\n',
        '[tool.poetry.dependencies]\nhelper = { version = "1", extras = ["x"] }\n',
    ],
)
def test_sources_that_change_nothing_are_not_refused(tmp_path: Path, text: str) -> None:
    project_with(tmp_path, text)
    assert read(tmp_path).dependencies == ("helper[fast]>=1", "rich")


def test_index_of_the_job_stands_for_those_of_tools(tmp_path: Path) -> None:
    text = '[tool.uv.sources]\nhelper = { index = "own" }\n[[tool.uv.index]]\nname = "own"\n'
    project_with(tmp_path, text + 'url = "https://own.example/"\n')
    index = {"PIP_INDEX_URL": "https://own.example/"}
    assert read(tmp_path, env=index).dependencies == ("helper[fast]>=1", "rich")


def test_sources_are_refused_where_only_the_backend_knows_the_dependencies(tmp_path: Path) -> None:
    dynamic = '[project]\nname = "a"\ndynamic = ["dependencies"]\n' + BUILT
    poetry = '[tool.poetry]\nname = "a"\n[tool.poetry.dependencies]\n' + BUILT
    for text in (
        dynamic + '[tool.uv.sources]\nhelper = { git = "https://example.com/h" }\n',
        poetry.replace("[build", 'helper = { version = "1", source = "own" }\n[build'),
    ):
        (tmp_path / "pyproject.toml").write_text(text)
        with pytest.raises(Refused):
            read(tmp_path)
    # Poetry's backend writes paths and repositories into the metadata.
    text = poetry.replace("[build", 'helper = { git = "https://example.com/h" }\n[build')
    (tmp_path / "pyproject.toml").write_text(text)
    assert read(tmp_path).dependencies == ("./.",)


# Dependencies in the script -------------------------------------------------------------------

METADATA = """#!/usr/bin/env python
# /// script
# requires-python = ">=3.10"
# dependencies = ["tabulate==0.8.10", "helper"]
#
# [tool.uv.sources]
# helper = { path = "libs/helper" }
# ///
# A comment.
"""


def test_dependencies_of_a_script_are_installed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(METADATA)
    (tmp_path / "libs/helper").mkdir(parents=True)
    packages = ("tabulate==0.8.10", "./libs/helper")
    assert read_installation(JobSection(), tmp_path, script) == Installation(packages=packages)
    # They are all that a script needs; a file is installed too if the stack file names it.
    (tmp_path / "requirements.txt").touch()
    assert read_installation(JobSection(), tmp_path, script) == Installation(packages=packages)
    both = Installation(requirements="requirements.txt", packages=packages)
    job = JobSection(requirements="requirements.txt")
    assert read_installation(job, tmp_path, script) == both
    assert read_installation(JobSection(requirements=None), tmp_path, script) == Installation()
    names = [each.name for each in required(tmp_path, None, script)]
    assert names == ["tabulate", "helper"]


def test_script_metadata_without_dependencies_leaves_them_to_the_folder(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    (tmp_path / "requirements.txt").touch()
    script.write_text('# /// script\n# requires-python = ">=3.10"\n# ///\n')
    of_file = Installation(requirements="requirements.txt")
    assert read_installation(JobSection(), tmp_path, script) == of_file
    script.write_text("# /// script\n# dependencies = []\n# ///\n")
    assert read_installation(JobSection(), tmp_path, script) == Installation()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# /// script\n# dependencies = [\n# ///\n", "Invalid"),
        ('# /// script\n# dependencies = ["--pre"]\n# ///\n', "--pre"),
        ("# /// script\n# dependencies = []\n", ""),  # without an end it is a comment
        ("# /// other\n# dependencies = [\n# ///\n", ""),
    ],
)
def test_invalid_script_metadata(tmp_path: Path, text: str, message: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    if not message:
        assert read_installation(JobSection(), tmp_path, script) == Installation()
        return
    with pytest.raises(Usage, match=message) as caught:
        read_installation(JobSection(), tmp_path, script)
    assert caught.value.diagnostics[0].summary == "Invalid script metadata"
