"""Requirements of every template."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tpuctl import assets
from tpuctl.errors import Conflict
from tpuctl.flows.stack.init import SCRIPTS, describe_templates, job_command, prepare
from tpuctl.model.scripts.python_request import request_of
from tpuctl.model.scripts.requirement_files import declared
from tpuctl.model.stack.stack import load_stack
from tpuctl.preflight.check import check_project
from tpuctl.preflight.findings import Target

TEMPLATES = assets.template_names()
STACKS = sorted(path.stem for path in (assets.templates() / "stacks").iterdir())
JOBS = sorted(path.name for path in (assets.templates() / "jobs").iterdir())
JOBS_ALONE = sorted(set(JOBS) - set(STACKS))
JOBS_WITH_STACK = sorted(set(JOBS) & set(STACKS))

LOCKED = ("jax", "torch")  # they bring their Python, and their requirements.txt is a lock
# Files and lines of a job, without its sample text and its lock; every other job is one file.
LIMITS = {
    "bert-pretraining": (14, 2010),
    "korean-wikipedia": (10, 1200),
    **dict.fromkeys(LOCKED, (2, 275)),  # with pyproject.toml
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_template_says_for_whom_it_is(name: str) -> None:
    description = describe_templates()[name]
    places = f"first line of templates/stacks/{name}.yaml, or of the job's documentation"
    assert description.startswith("For "), f"{places}: {description}"
    assert description.endswith(".")
    assert len(description) <= 62, "longer than a line of a terminal, after the name"


@pytest.mark.parametrize("name", JOBS_WITH_STACK)
def test_template_job_has_script(name: str) -> None:
    folder = assets.templates() / "jobs" / name
    assert any((folder / script).is_file() for script in SCRIPTS), f"{folder} has none of {SCRIPTS}"


@pytest.mark.parametrize("name", JOBS_ALONE)
def test_documentation_of_job_alone_has_command(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    assert job_command(assets.templates() / "jobs" / name).startswith("python ")
    command = prepare(name, tmp_path).write().command
    assert Path(command.split()[1]).parent == folder
    assert Path(command.split()[1]).is_file()
    assert not command.endswith("\\")


@pytest.mark.parametrize("name", STACKS)
def test_stack_file_of_template_loads(name: str, tmp_path: Path) -> None:
    written = prepare(name, tmp_path, project="my-project").write()
    assert written.stack_file is not None
    assert load_stack(written.stack_file).project == "my-project"


@pytest.mark.parametrize("name", JOBS_ALONE)
def test_job_alone_is_added_to_stack(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    prepare("bert-pretraining", tmp_path, name="mine", project="my-project").write()
    before = (tmp_path / "tpuctl.yaml").read_bytes()
    written = prepare(name, tmp_path).write()
    assert (written.stack_file, written.folder) == (None, tmp_path / name)
    assert set(written.files) == {path for path in (tmp_path / name).rglob("*") if path.is_file()}
    assert (tmp_path / "tpuctl.yaml").read_bytes() == before
    with pytest.raises(Conflict):
        prepare(name, tmp_path).write()


@pytest.mark.parametrize("name", JOBS_WITH_STACK)
def test_template_script_has_no_findings(name: str) -> None:
    folder = assets.templates() / "jobs" / name
    script = next(folder / name for name in SCRIPTS if (folder / name).is_file())
    target = Target(tensorflow="2.18.0", replicas=8)
    if name in LOCKED:
        target = Target(python="3.12", pythons=("3.12",), asked_by="requires-python", replicas=8)
    assert check_project(script, target).findings == ()


@pytest.mark.parametrize("name", LOCKED)
def test_template_brings_python_and_locks_what_it_needs(name: str) -> None:
    folder = assets.templates() / "jobs" / name
    request = request_of("auto", folder)
    assert request is not None
    assert request.allows_minor("3.12")
    assert not request.allows_image("3.10"), "the Python of most images"

    text = (folder / "requirements.txt").read_text("utf-8")
    entries = [entry for entry in text.replace("\\\n", "").split("\n") if entry and entry[0] != "#"]
    assert all(re.match(r"[\w.-]+==\S+ (; [^;]+ )?( *--hash=sha256:\w{64})+$", e) for e in entries)
    locked = {entry.name: entry.clauses.strip() for entry in declared(folder)}
    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    for requirement in map(Requirement, project["dependencies"]):
        version = locked[canonicalize_name(requirement.name)].removeprefix("==")
        assert version in requirement.specifier
    assert "libtpu" in locked


@pytest.mark.parametrize("name", JOBS)
def test_template_job_stays_small(name: str) -> None:
    """Someone reads it before running it."""
    folder = assets.templates() / "jobs" / name
    unread = {"sample", "__pycache__", *(["requirements.txt"] if name in LOCKED else [])}
    files = [
        path
        for path in folder.rglob("*")
        if path.is_file() and not unread & set(path.relative_to(folder).parts)
    ]
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in files)
    max_files, max_lines = LIMITS.get(name, (1, 260))
    assert len(files) <= max_files, sorted(str(path.relative_to(folder)) for path in files)
    assert lines <= max_lines


@pytest.mark.parametrize("name", JOBS)
def test_template_job_runs_without_tpuctl(name: str) -> None:
    """It is the user's code: on machines, in notebooks, and on laptops tpuctl is not installed."""
    for path in (assets.templates() / "jobs" / name).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert "tpuctl" not in {module.partition(".")[0] for module in modules}, path
