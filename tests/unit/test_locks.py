"""Locks that a job obeys, and checks of them before the upload, with uv itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.wheels import make_wheel
from tpuctl.errors import Refused, TpuctlError, Usage
from tpuctl.jobs.file_selection import FileRules
from tpuctl.jobs.requirements.installation import named_files, read_installation
from tpuctl.jobs.requirements.locks import installable, lock_problem
from tpuctl.jobs.requirements.uv_program import uv_path
from tpuctl.model.jobs.installation import Installation, LockFile
from tpuctl.model.scripts.framework import framework_in
from tpuctl.model.scripts.lock_files import read_lock
from tpuctl.model.scripts.requirement_files import declared, included_files, required
from tpuctl.model.stack.schema import JobSection

X86, ARM = "x86_64-manylinux_2_31", "aarch64"
BUILD = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
PYPROJECT = """[project]
name = "app"
version = "1"
requires-python = ">=3.10"
dependencies = [
  "jax[tpu]>=0.8",
  "tabulate",
]

[project.optional-dependencies]
fast = ["einops"]

[dependency-groups]
dev = ["pytest-mini"]
data = ["grain"]

[tool.uv]
no-index = true
find-links = ["wheels"]
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index") / "wheels"
    make_wheel(folder, "jaxlib", "0.8.1")
    make_wheel(folder, "libtpu", "0.0.27")
    requires = ("jaxlib==0.8.1", "libtpu==0.0.27; extra == 'tpu'")
    make_wheel(folder, "jax", "0.8.1", requires=requires)
    for name in ("tabulate", "einops", "grain", "pytest-mini"):
        make_wheel(folder, name, "1.0")
    make_wheel(folder, "tensorflow", "2.18.0")
    make_wheel(folder, "loader", "1.0", requires=("tensorflow",))
    return folder


@pytest.fixture
def folder(tmp_path: Path, wheels: Path) -> Path:
    """A job's folder, with the wheels that are its index."""
    path = tmp_path / "job"
    shutil.copytree(wheels, path / "wheels", dirs_exist_ok=True)
    return path


def uv(folder: Path, *arguments: str) -> None:
    command = [uv_path(), *arguments, "--offline", "--python", sys.executable]
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


def read(folder: Path, script: Path | None = None, **job: Any) -> Installation:
    return read_installation(JobSection(wheels=None, **job), folder, script)


def problem_of(folder: Path, script: Path | None = None, **job: Any) -> TpuctlError:
    with pytest.raises((Usage, Refused)) as caught:
        read(folder, script, **job)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.hint
    return caught.value


def where(error: TpuctlError) -> str:
    return error.diagnostics[0].where


def lock_project(folder: Path, text: str = PYPROJECT) -> LockFile:
    (folder / "pyproject.toml").write_text(text)
    uv(folder, "lock")
    lock = read(folder).lock
    assert lock is not None
    return lock


def lines_of(path: Path, text: str) -> list[int]:
    return [n for n, line in enumerate(path.read_text().split("\n"), 1) if text in line]


# What is installed ----------------------------------------------------------------------------


def test_lock_comes_before_requirements_and_without_default_groups(folder: Path) -> None:
    lock = lock_project(folder)
    (folder / "requirements.txt").write_text("tabulate\n")
    assert lock == LockFile(path="uv.lock", form="uv")
    assert read(folder) == Installation(lock=lock)  # no package: nothing to build
    with_sets = read(folder, requirements="uv.lock[fast, data]").lock
    assert with_sets == LockFile(path="uv.lock", form="uv", extras=("fast",), groups=("data",))
    assert named_files(JobSection(), read(folder)) == ("/uv.lock", "/pyproject.toml")
    # Without its project, it says nothing under `auto`.
    (folder / "pyproject.toml").unlink()
    assert read(folder) == Installation(requirements="requirements.txt")
    assert "pyproject.toml" in str(problem_of(folder, requirements="uv.lock"))


def test_unknown_and_ambiguous_names_of_a_lock(folder: Path) -> None:
    lock_project(folder, PYPROJECT.replace("fast =", "data = ['grain']\nfast ="))
    assert "extras: data, fast; groups: data, dev" in str(
        problem_of(folder, requirements="uv.lock[tpu]")
    )
    error = problem_of(folder, requirements="uv.lock[data]")
    assert "'uv.lock[group:data]'" in error.diagnostics[0].hint
    lock = read(folder, requirements="uv.lock[group:data]").lock
    assert lock is not None
    assert (lock.extras, lock.groups) == ((), ("data",))


@pytest.fixture
def monorepo(folder: Path) -> Path:
    """A workspace whose packages have the src layout, with a path dependency besides."""
    sources = """
[tool.uv.workspace]
members = ["packages/*"]

[tool.uv.sources]
core = { workspace = true }
plain = { workspace = true }
ext = { path = "libs/ext", editable = true }
wheel-only = { path = "libs/wheel_only-1.0-py3-none-any.whl" }
"""
    text = PYPROJECT.replace('"tabulate",', '"core", "plain", "wheel-only",\n')
    text = text.replace('fast = ["einops"]', 'fast = ["ext"]')
    (folder / "libs").mkdir()
    make_wheel(folder / "libs", "wheel-only", "1.0")
    for name, build in (
        ("packages/core", BUILD),
        ("packages/unused", BUILD),
        ("packages/plain", "[tool.uv]\npackage = false\n"),
        ("libs/ext", BUILD),
    ):
        package = Path(name).name
        (folder / name / "src" / package).mkdir(parents=True)
        (folder / name / "src" / package / "__init__.py").touch()
        (folder / name / "pyproject.toml").write_text(
            f'[project]\nname = "{package}"\nversion = "1"\nrequires-python = ">=3.10"\n'
            f'dependencies = ["einops"]\n{build}'
        )
    (folder / "pyproject.toml").write_text(text + sources + BUILD)
    uv(folder, "lock")
    return folder


def test_workspace_members_and_paths_are_built_if_the_job_needs_them(monorepo: Path) -> None:
    usual = read(monorepo)
    assert (usual.project, set(usual.members)) == (
        ".",
        {"packages/core", "libs/wheel_only-1.0-py3-none-any.whl"},
    )
    with_extra = read(monorepo, requirements="uv.lock[fast]")
    assert {*with_extra.members} - {*usual.members} == {"libs/ext"}
    patterns = named_files(JobSection(), with_extra)
    assert {"/libs/ext/pyproject.toml", "/libs/ext/**/*.py"} <= {*patterns}
    assert "/libs/wheel_only-1.0-py3-none-any.whl" in patterns
    # What comes from an index is what the rules of the check see; of the folder's, nothing.
    names = {requirement.name for requirement in declared(monorepo)}
    assert names == {"jax", "jaxlib", "libtpu", "einops"}


def test_members_outside_the_uploaded_folder_are_refused_with_their_line(monorepo: Path) -> None:
    (monorepo / "libs/ext").rename(monorepo.parent / "ext")
    project = monorepo / "pyproject.toml"
    project.write_text(project.read_text().replace('"libs/ext"', '"../ext"'))
    uv(monorepo, "lock")
    read(monorepo)  # an extra that is not installed
    error = problem_of(monorepo, requirements="uv.lock[fast]")
    assert isinstance(error, Refused)
    (line,) = lines_of(project, "ext = {")
    assert where(error) == f"{project}:{line}"


def test_lock_in_a_subfolder(monorepo: Path) -> None:
    (monorepo / "job").mkdir()
    for name in ("pyproject.toml", "uv.lock", "packages", "libs", "wheels"):
        (monorepo / name).rename(monorepo / "job" / name)
    install = read(monorepo, requirements="job/uv.lock[fast]")
    assert install.project == "job"
    assert {"job/packages/core", "job/libs/ext"} <= {*install.members}
    assert install.lock is not None
    assert lock_problem(install.lock, monorepo, "3.12", ARM) is None
    assert installable(install.lock, monorepo, "3.12", X86)


def test_member_of_a_workspace_whose_lock_is_not_uploaded_is_refused(monorepo: Path) -> None:
    member = monorepo / "packages/core"
    error = problem_of(member)
    assert isinstance(error, Refused)
    assert where(error) == f"{member / 'pyproject.toml'}:1"
    assert str(monorepo / "uv.lock") in str(error)
    assert read(member, requirements="pyproject.toml").dependencies == ("einops",)
    (monorepo / "other").mkdir()
    (monorepo / "other/pyproject.toml").write_text(PYPROJECT.partition("[tool.uv]")[0])
    assert read(monorepo / "other").dependencies


def test_reading_a_lock_writes_nothing_into_the_folder(monorepo: Path) -> None:
    before = sorted(monorepo.rglob("*"))
    lock = read(monorepo).lock
    assert lock is not None
    assert lock_problem(lock, monorepo, "3.13", "x86_64") is None
    assert sorted(monorepo.rglob("*")) == before


def test_workspace_without_a_project_installs_its_members(folder: Path) -> None:
    (folder / "member").mkdir()
    member = PYPROJECT.partition("[tool.uv]")[0].replace('"app"', '"trainer"')
    (folder / "member/pyproject.toml").write_text(member + BUILD)
    settings = PYPROJECT.partition("[tool.uv]")[2]
    lock_project(folder, f'[tool.uv]\n{settings}[tool.uv.workspace]\nmembers = ["member"]\n')
    install = read(folder, requirements="uv.lock[data]")
    assert (install.project, install.members) == (None, ("member",))
    assert {"jax", "grain"} <= {
        requirement.name for requirement in declared(folder, "uv.lock[data]")
    }


SCRIPT = """# /// script
# requires-python = ">=3.10"
# dependencies = ["jax[tpu]", "tabulate"]
#
# [tool.uv]
# no-index = true
# find-links = ["wheels"]
# ///
import jax
"""


def test_script_with_its_lock(folder: Path) -> None:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    (folder / "requirements.txt").write_text("tabulate\n")
    uv(folder, "lock", "--script", "train.py")
    lock = LockFile(path="train.py.lock", form="script", script="train.py")
    assert read(folder, script) == Installation(lock=lock)
    assert read(folder, requirements="train.py.lock") == Installation(lock=lock)
    assert named_files(JobSection(), read(folder, script)) == ("/train.py.lock", "/train.py")
    jax, *_ = required(folder, None, script)
    assert (jax.text, jax.path.name) == ("jax[tpu]==0.8.1", "train.py.lock")
    assert "has no extras" in str(problem_of(folder, requirements="train.py.lock[tpu]"))
    # The script changes, and its lock does not.
    script.write_text(SCRIPT.replace('"tabulate"', '"tabulate", "einops"'))
    error = problem_of(folder, script)
    assert where(error) == f"{script}:3"
    assert "uv lock --script train.py" in error.diagnostics[0].hint


def test_path_of_a_script_is_built(monorepo: Path) -> None:
    script = monorepo / "train.py"
    source = '# [tool.uv.sources]\n# ext = { path = "libs/ext", editable = true }\n# ///\n'
    script.write_text(
        SCRIPT.replace('"tabulate"', '"ext"').replace("# ///\nimport", f"{source}import")
    )
    uv(monorepo, "lock", "--script", "train.py")
    install = read(monorepo, script)
    assert (install.project, install.members) == (None, ("libs/ext",))
    # Without a lock, pip is given the folder.
    script.with_name("train.py.lock").unlink()
    with pytest.raises(Refused, match="find-links"):
        read(monorepo, script)
    install = read_installation(JobSection(wheels="wheels"), monorepo, script)
    assert install.packages == ("jax[tpu]", "./libs/ext")


def test_files_of_a_lock_are_uploaded_even_if_ignored(monorepo: Path) -> None:
    (monorepo / ".tpuctlignore").write_text("uv.lock\npyproject.toml\nlibs/\n")
    (monorepo / "libs/ext/data").mkdir()
    (monorepo / "libs/ext/data/train.bin").touch()
    (monorepo / "train.py").touch()
    include = named_files(JobSection(), read(monorepo, requirements="uv.lock[fast]"))
    names = {entry.name for entry in FileRules(monorepo, include).select().entries}
    assert names >= {
        *("uv.lock", "pyproject.toml", "libs/ext/pyproject.toml", "libs/ext/src/ext/__init__.py"),
        *("packages/core/pyproject.toml", "libs/wheel_only-1.0-py3-none-any.whl"),
    }
    assert "libs/ext/data/train.bin" not in names


PYLOCK = """lock-version = "1.0"
created-by = "hand"
requires-python = ">=3.11"
extras = ["tpu"]
dependency-groups = ["data"]

[[packages]]
name = "jax"
version = "0.8.1"
wheels = [
  { url = "https://index.example/jax-0.8.1-py3-none-any.whl", hashes = { sha256 = "HASH" } },
]

[[packages]]
name = "libtpu"
version = "0.0.27"
marker = "'tpu' in extras"
wheels = [
  { url = "https://index.example/libtpu-0.0.27-py3-none-manylinux_2_31_x86_64.whl", \
hashes = { sha256 = "HASH" } },
]
""".replace("HASH", "0" * 64)


def test_pylock_with_extras_and_another_name(folder: Path) -> None:
    (folder / "pylock.toml").write_text(PYLOCK)
    assert read(folder).lock == LockFile(path="pylock.toml", form="pylock")
    (folder / "pylock.toml").rename(folder / "pylock.tpu.toml")
    lock = read(folder, requirements="pylock.tpu.toml[tpu]").lock
    assert lock == LockFile(path="pylock.tpu.toml", form="pylock", extras=("tpu",))
    assert [
        (requirement.text, requirement.line)
        for requirement in declared(folder, "pylock.tpu.toml[tpu]")
    ] == [("jax[tpu]==0.8.1", 9), ("libtpu==0.0.27", 16)]
    assert "libtpu" not in {each.name for each in declared(folder, "pylock.tpu.toml")}
    assert lock_problem(lock, folder, "3.12", X86) is None
    problem = lock_problem(lock, folder, "3.12", ARM)
    assert problem is not None
    assert (problem.where, "libtpu 0.0.27" in problem.detail) == (
        f"{folder / 'pylock.tpu.toml'}:16",
        True,
    )
    problem = lock_problem(lock, folder, "3.10", X86)
    assert problem is not None
    assert problem.where.endswith(":3")


def test_requirements_with_hashes_are_a_requirements_file(folder: Path) -> None:
    lock_project(folder)
    uv(folder, "export", "--output-file", "requirements.txt", "--quiet")
    (folder / "uv.lock").unlink()
    assert read(folder).requirements == "requirements.txt"
    by_name = {requirement.name: requirement.text for requirement in required(folder)}
    assert by_name["tabulate"] == "tabulate==1.0"


# What the check sees --------------------------------------------------------------------------


def test_exact_versions_and_lines_of_a_lock(folder: Path) -> None:
    lock_project(folder)
    (folder / "requirements.txt").write_text("jax==0.4.30\n")
    by_name = {requirement.name: requirement for requirement in required(folder)}
    assert {name: requirement.text for name, requirement in by_name.items()} == {
        "jax": "jax[tpu]==0.8.1",
        "jaxlib": "jaxlib==0.8.1",
        "libtpu": "libtpu==0.0.27",
        "tabulate": "tabulate==1.0",
    }
    assert lines_of(folder / "uv.lock", 'version = "0.0.27"') == [by_name["libtpu"].line]
    assert [name for name, each in by_name.items() if each.is_transitive] == ["jaxlib", "libtpu"]
    assert included_files(folder) == []
    with_group = {requirement.name for requirement in required(folder, "uv.lock[data]")}
    assert with_group - by_name.keys() == {"grain"}


def test_extras_and_groups_of_a_project_are_declared(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    listed = declared(tmp_path, "pyproject.toml[fast, data]")
    assert [(each.name, each.line) for each in listed] == [
        ("jax", 6),
        ("tabulate", 7),
        ("einops", 11),
        ("grain", 15),
    ]


def test_default_groups_of_a_pylock(tmp_path: Path) -> None:
    text = PYLOCK.replace("'tpu' in extras", "'usual' in dependency_groups").replace(
        '["data"]', '["data", "usual"]\ndefault-groups = ["usual"]'
    )
    (tmp_path / "pylock.toml").write_text(text)
    assert [each.name for each in required(tmp_path)] == ["jax", "libtpu"]
    assert [each.name for each in required(tmp_path, "pylock.toml[data]")] == ["jax"]


def test_framework_is_that_of_direct_dependencies(folder: Path) -> None:
    lock_project(folder, PYPROJECT.replace('"tabulate"', '"loader"').replace("jax[tpu]", "jax"))
    assert "tensorflow" in {requirement.name for requirement in declared(folder)}
    choice = framework_in(folder)
    assert choice is not None
    assert (choice.framework, choice.because) == ("jax", "uv.lock")


UV_LOCK = """version = 1
requires-python = ">=3.10"

[[package]]
name = "app"
version = "1"
source = { virtual = "." }
dependencies = [
    { name = "numpy", version = "1.26.0", source = { registry = "https://index.example" }, \
marker = "python_full_version < '3.12'" },
    { name = "numpy", version = "2.1.0", source = { registry = "https://index.example" }, \
marker = "python_full_version >= '3.12'" },
    { name = "pywin32", marker = "sys_platform == 'win32'" },
]

[[package]]
name = "numpy"
version = "1.26.0"
source = { registry = "https://index.example" }
resolution-markers = ["python_full_version < '3.12'"]

[[package]]
name = "numpy"
version = "2.1.0"
source = { registry = "https://index.example" }
resolution-markers = ["python_full_version >= '3.12'"]

[[package]]
name = "pywin32"
version = "308"
source = { registry = "https://index.example" }
"""


def test_versions_for_some_pythons_are_conditional_and_windows_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "uv.lock").write_text(UV_LOCK)
    assert [(each.text, each.is_conditional) for each in declared(tmp_path)] == [
        ("numpy==1.26.0", True),
        ("numpy==2.1.0", True),
    ]
    (tmp_path / "uv.lock").write_text(UV_LOCK.replace(">=3.10", ">=3.12", 1))
    assert [each.text for each in required(tmp_path)] == ["numpy==2.1.0"]


def test_conflicting_extras(folder: Path) -> None:
    make_wheel(folder / "wheels", "grain", "2.0")
    text = PYPROJECT.replace('fast = ["einops"]', 'fast = ["grain==1.0"]\nnew = ["grain==2.0"]')
    lock_project(folder, text + 'conflicts = [[{extra = "fast"}, {extra = "new"}]]\n')
    for extra, version in (("fast", "1.0"), ("new", "2.0")):
        listed = required(folder, f"uv.lock[{extra}]")
        assert [each.text for each in listed if each.name == "grain"] == [f"grain=={version}"]
    both = read(folder, requirements="uv.lock[fast, new]").lock
    assert both is not None
    problem = lock_problem(both, folder, "3.12", "x86_64")
    assert problem is not None
    assert problem.where == "job.requirements"


# Locks that cannot be obeyed -------------------------------------------------------------------


def test_lock_that_does_not_match_its_project(folder: Path) -> None:
    lock_project(folder)
    project = folder / "pyproject.toml"
    project.write_text(PYPROJECT.replace('"tabulate"', '"tabulate>=1"'))
    error = problem_of(folder)
    assert where(error) == f"{project}:7"
    assert error.diagnostics[0].hint.endswith("\n    uv lock")
    # uv alone sees what is no requirement.
    project.write_text(PYPROJECT.replace("[tool.uv]\n", "[tool.uv]\nprerelease = 'allow'\n"))
    assert where(problem_of(folder)) == f"{folder / 'uv.lock'}:1"
    # Removed again: it matches.
    project.write_text(PYPROJECT)
    read(folder)
    project.write_text(PYPROJECT.replace('  "tabulate",\n', ""))
    assert "tabulate is in the lock, and no longer required" in str(problem_of(folder))


def test_index_of_this_computer_is_no_difference(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock of another index than the one that uv is told on this computer."""
    text = PYPROJECT.partition("[tool.uv]")[0]
    (folder / "pyproject.toml").write_text(text)
    monkeypatch.setenv("UV_FIND_LINKS", str(folder / "wheels"))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    uv(folder, "lock")
    monkeypatch.delenv("UV_NO_INDEX")
    monkeypatch.delenv("UV_FIND_LINKS")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    assert read(folder).lock is not None
    (folder / "pyproject.toml").write_text(text.replace('"tabulate"', '"einops"'))
    problem_of(folder)


def test_lock_is_compared_without_a_python_that_it_allows(folder: Path) -> None:
    """uv compares only with an interpreter that the project allows."""
    (folder / "uv.lock").write_text(
        """version = 1
requires-python = ">=3.99"

[[package]]
name = "app"
version = "1"
source = { virtual = "." }
dependencies = [{ name = "tabulate" }]

[package.metadata]
requires-dist = [{ name = "tabulate", specifier = ">=1.0" }]

[[package]]
name = "tabulate"
version = "1.0"
source = { registry = "https://index.example/simple" }
"""
    )
    project = '[project]\nname = "app"\nversion = "1"\nrequires-python = ">=3.99"\n'
    (folder / "pyproject.toml").write_text(f'{project}dependencies = ["tabulate>=1.0"]\n')
    assert read(folder).lock is not None
    (folder / "pyproject.toml").write_text(f'{project}dependencies = ["tabulate"]\n')
    assert where(problem_of(folder)).endswith("pyproject.toml:5")


@pytest.mark.parametrize(
    ("before", "after", "line", "summary"),
    [
        ("version = 1", "version = 7", 1, "Unsupported lock format"),
        ("version = 1", 'version = "one"', 1, "Invalid lock"),
        ('name = "numpy"\n', "name =\n", 15, "Invalid lock"),
        ('[[package]]\nname = "app"', "<<<<<<< HEAD\n[[package]]", 4, "Invalid lock"),
    ],
)
def test_damaged_and_newer_locks(
    tmp_path: Path, before: str, after: str, line: int, summary: str
) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "uv.lock").write_text(UV_LOCK.replace(before, after, 1))
    error = problem_of(tmp_path)
    assert where(error) == f"{tmp_path / 'uv.lock'}:{line}"
    assert error.diagnostics[0].summary == summary
    assert declared(tmp_path) == []


WHEELS = """wheels = [
    { url = "https://index.example/numpy-NUMBER-CP-CP-manylinux_2_28_x86_64.whl", \
hash = "sha256:HASH", size = 1 },
]
""".replace("HASH", "0" * 64)


def test_lock_for_a_python_or_a_platform(tmp_path: Path) -> None:
    """numpy 1.26 has a wheel for Python 3.11, numpy 2.1 for 3.12, both for x86-64."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "app"\nversion = "1"\n')
    text = UV_LOCK
    for number, tag in (("1.26.0", "cp311"), ("2.1.0", "cp312")):
        marker = f'version = "{number}"\nsource = {{ registry = "https://index.example" }}\n'
        files = WHEELS.replace("NUMBER", number).replace("CP", tag)
        text = text.replace(marker, marker + files)
    path = tmp_path / "uv.lock"
    path.write_text(text)
    lock = LockFile(path="uv.lock", form="uv")
    for minor in ("3.10", "3.13"):
        problem = lock_problem(lock, tmp_path, minor, X86)
        assert problem is not None
        assert "numpy" in problem.detail
        assert f"Python {minor}" in problem.detail
        assert problem.hint
    assert [installable(lock, tmp_path, minor, X86) for minor in ("3.11", "3.12")] == [True, True]
    assert not installable(lock, tmp_path, "3.12", ARM)
    problem = lock_problem(lock, tmp_path, "3.9", X86)
    assert problem is not None
    assert problem.where == f"{path}:2"
    # Sources can be built; a wheel is preferred.
    address = f'url = "https://index.example/numpy-2.1.0.tar.gz", hash = "sha256:{"0" * 64}"'
    source = f"sdist = {{ {address} }}\n"
    path.write_text(text.replace('version = "2.1.0"\nsource', f'version = "2.1.0"\n{source}source'))
    assert lock_problem(lock, tmp_path, "3.13", X86) is None
    assert not installable(lock, tmp_path, "3.13", X86)


def test_lock_for_other_platforms_only(folder: Path) -> None:
    text = PYPROJECT.replace(
        "[tool.uv]\n", "[tool.uv]\nenvironments = [\"sys_platform == 'darwin'\"]\n"
    )
    lock = lock_project(folder, text)
    problem = lock_problem(lock, folder, "3.12", X86)
    assert problem is not None
    assert problem.summary == "Lock is for other platforms"
    (line,) = lines_of(folder / "uv.lock", "supported-markers")
    assert problem.where == f"{folder / 'uv.lock'}:{line}"


# Passwords -------------------------------------------------------------------------------------


def _password_cases() -> Iterator[tuple[str, str, int]]:
    url = "https://me:hunter2@index.example/simple"
    yield "requirements.txt", f"tabulate\n--extra-index-url {url}\n", 2
    yield "requirements.txt", f"six @ git+{url}\n", 1
    yield "requirements.txt", "six @ git+https://ghp_hunter2@code.example/six\n", 1
    yield "pyproject.toml", f'[project]\nname="a"\ndependencies = ["six @ {url}"]\n', 3
    yield "pylock.toml", PYLOCK.replace("https://index", "https://me:hunter2@index", 1), 11
    yield "train.py", f'# /// script\n# dependencies = ["six @ {url}"]\n# ///\n', 2


@pytest.mark.parametrize(("name", "text", "line"), [*_password_cases()])
def test_passwords_are_refused_by_file_and_line(
    tmp_path: Path, name: str, text: str, line: int
) -> None:
    (tmp_path / name).write_text(text)
    error = problem_of(tmp_path, tmp_path / "train.py")
    assert where(error) == f"{tmp_path / name}:{line}"
    assert "hunter2" not in str(error) + error.diagnostics[0].text


def test_password_of_an_index_names_its_variables(folder: Path) -> None:
    lock_project(folder)
    project = folder / "pyproject.toml"
    index = '[[tool.uv.index]]\nname = "own-1"\nurl = "https://me:hunter2@index.example/simple"\n'
    project.write_text(PYPROJECT + index)
    error = problem_of(folder)
    assert "tool.uv.index" in str(error)
    assert "UV_INDEX_OWN_1_PASSWORD" in error.diagnostics[0].hint
    assert "hunter2" not in error.diagnostics[0].text


@pytest.mark.parametrize(
    "text",
    [
        "# --index-url https://me:hunter2@index.example/\n",
        "--index-url https://${USER}:${TOKEN}@index.example/\n",
        "six @ git+ssh://git@code.example/six\n",
        "six @ git+https://oauth2accesstoken@code.example/six\n",
    ],
)
def test_variables_and_users_are_no_passwords(tmp_path: Path, text: str) -> None:
    (tmp_path / "requirements.txt").write_text(text)
    assert read(tmp_path).requirements == "requirements.txt"


# Other tools -----------------------------------------------------------------------------------

POETRY = '[tool.poetry]\nname = "a"\nversion = "1"\n[tool.poetry.dependencies]\nsix = "^1"\n' + (
    '[build-system]\nrequires = ["poetry-core"]\nbuild-backend = "poetry.core.masonry.api"\n'
)
CONDA = "name: a\ndependencies:\n  - python=3.12\n  - pip:\n    - jax\n"


@pytest.mark.parametrize(
    ("name", "text", "command"),
    [
        ("poetry.lock", "[[package]]\n", "poetry export --format requirements.txt"),
        ("pdm.lock", "[[package]]\n", "pdm export --prod --format requirements"),
        ("Pipfile.lock", "{}\n", "pipenv requirements --hash > requirements.txt"),
        ("pixi.lock", "version: 6\n", "pixi run python -m pip list --format=freeze"),
        ("conda-lock.yml", "version: 1\n", "conda run python -m pip list --format=freeze"),
        ("environment.yml", CONDA, "conda run python -m pip list --format=freeze"),
    ],
)
def test_locks_of_other_tools_name_the_command_that_exports_them(
    tmp_path: Path, name: str, text: str, command: str
) -> None:
    (tmp_path / name).write_text(text)
    for project in ("", "[tool.ruff]\n"):
        if project:
            (tmp_path / "pyproject.toml").write_text(project)
        error = problem_of(tmp_path)
        assert isinstance(error, Refused)
        assert where(error) == f"{tmp_path / name}:1"
        hint = error.diagnostics[0].hint
        assert f"\n    {command}" in hint
        assert "\n    job: {requirements: null}" in hint
        assert ("\n    job: {python: '3.12'}" in hint) == (text == CONDA)
    assert read(tmp_path, requirements=None) == Installation()
    (tmp_path / "pyproject.toml").write_text(POETRY)
    if name.endswith("environment.yml"):  # no lock: the project says what it needs
        assert read(tmp_path).dependencies == ("./.",)
    else:
        assert "other versions than it locks" in str(problem_of(tmp_path))
    assert read(tmp_path, requirements="pyproject.toml").dependencies == ("./.",)
    (tmp_path / "requirements.txt").write_text("six==1.17.0\n")
    assert read(tmp_path).requirements == "requirements.txt"


def test_environment_without_dependencies_and_setup_commands_are_not_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "environment.yml").write_text("name: a\n")
    assert read(tmp_path) == Installation()
    (tmp_path / "environment.yml").write_text(CONDA)
    assert read(tmp_path, setup="./install.sh") == Installation(setup="./install.sh")


def test_index_of_a_package_is_understood_with_a_lock(tmp_path: Path) -> None:
    """The lock names the index of each package; without it, pip would ask the public one."""
    project = '[project]\nname = "app"\nversion = "1"\nrequires-python = ">=3.10"\n'
    project += 'dependencies = ["tabulate"]\n[tool.uv.sources]\ntabulate = { index = "own" }\n'
    project += '[[tool.uv.index]]\nname = "own"\nurl = "https://index.example/simple"\n'
    (tmp_path / "pyproject.toml").write_text(project)
    error = problem_of(tmp_path)
    assert "\n    uv lock\n" in error.diagnostics[0].hint
    registry = "https://index.example/simple"
    (tmp_path / "uv.lock").write_text(
        f"""version = 1
revision = 3
requires-python = ">=3.10"

[[package]]
name = "app"
version = "1"
source = {{ virtual = "." }}
dependencies = [
    {{ name = "tabulate" }},
]

[package.metadata]
requires-dist = [{{ name = "tabulate", index = "{registry}" }}]

[[package]]
name = "tabulate"
version = "1.0"
source = {{ registry = "{registry}" }}
wheels = [
    {{ url = "https://index.example/tabulate-1.0-py3-none-any.whl", hash = "sha256:{"0" * 64}" }},
]
"""
    )
    assert read(tmp_path).lock == LockFile(path="uv.lock", form="uv")
    assert read_lock(tmp_path / "uv.lock").root is not None
