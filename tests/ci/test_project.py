"""The project's workflows, forms and hooks are valid, call what exists; releases are complete."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ci.shells import require_shell, scripts_of
from tests.support.commands import succeed
from tpuctl import __version__
from tpuctl.cli.completion.shells import SCRIPTS, completion_script

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = [
    path for path in sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) if path.stem != "config"
]
SCHEMAS = {
    "github-workflows": WORKFLOWS,
    "github-issue-forms": FORMS,
    "github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "dependabot": [GITHUB / "dependabot.yml"],
}
PINNED = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
COMPLETIONS = {
    "bash": "share/bash-completion/completions/tpuctl",
    "zsh": "share/zsh/site-functions/_tpuctl",
    "fish": "share/fish/vendor_completions.d/tpuctl.fish",
}
MAN_SOURCE = "docs/reference/tpuctl.1"
MAN_PAGE = "share/man/man1/tpuctl.1"


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_match_github_schema(schema: str) -> None:
    files = [str(path) for path in SCHEMAS[schema]]
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_make_targets_and_pinned_actions(workflow: Path, tmp_path: Path) -> None:
    text = workflow.read_text("utf-8")
    used = re.findall(r"uses: (.+)", text)
    assert used
    assert not [action for action in used if action[:2] != "./" and not PINNED.fullmatch(action)]
    document = load(workflow)
    assert document["permissions"] == {"contents": "read"}, "jobs ask for more where they need it"
    scripts = {"jobs": {name: job for name, job in document["jobs"].items() if "steps" in job}}
    for number, script in enumerate(scripts_of("github", yaml.safe_dump(scripts))):
        folder = tmp_path / str(number)
        folder.mkdir()
        require_shell(script, folder)
    matrix = document["jobs"].get("soak", {}).get("strategy", {}).get("matrix", {})
    called = {*re.findall(r"\bmake (\w+)", text), *matrix.get("target", ())}
    assert called <= targets(), workflow.name


def targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    return {*re.findall(r"(?m)^([a-z]+):", makefile)}


def test_every_long_target_is_run_by_a_workflow() -> None:
    text = "".join(workflow.read_text("utf-8") for workflow in WORKFLOWS)
    for target in ("test", "demo", "release", "soak", "clients", "bench"):
        assert re.search(rf"\bmake {target}\b|target: .*\b{target}\b", text), target


def test_bug_form_asks_for_debug_dump() -> None:
    fields = {
        field.get("id"): field for field in load(GITHUB / "ISSUE_TEMPLATE" / "bug.yml")["body"]
    }
    assert "`tpuctl debug-dump`" in fields["dump"]["attributes"]["description"]
    assert fields["dump"]["validations"]["required"]
    assert load(GITHUB / "ISSUE_TEMPLATE" / "config.yml") == {"blank_issues_enabled": False}


def test_pre_commit_hooks_need_no_network_and_run_what_make_check_runs() -> None:
    (repository,) = load(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    hooks = repository["hooks"]
    assert all(hook["language"] == "system" for hook in hooks)
    recipe = (ROOT / "Makefile").read_text("utf-8").partition("\ncheck:")[2].partition("\n\n")[0]
    checks = re.findall(r"\$\(BIN\)/(.+)", recipe)
    assert len(checks) == 5
    for check in checks:
        words = [word for word in check.split() if word[:1] != "-" and word != "."]
        entries = [hook["entry"] for hook in hooks]
        assert any(all(word in entry for word in words) for entry in entries), check


def test_project_names_no_registry_host() -> None:
    files = [
        *(ROOT / ".github").rglob("*.yml"),
        *ROOT.glob("*.md"),
        ROOT / ".pre-commit-config.yaml",
    ]
    files += [ROOT / "Makefile", ROOT / ".ci" / "release.py", ROOT / "pyproject.toml"]
    hosts = ("pypi" + ".org", "pythonhosted" + ".org")
    assert not [
        path.name for path in files if any(host in path.read_text("utf-8") for host in hosts)
    ]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The files of a release, not installed."""
    target = tmp_path_factory.mktemp("release")
    script = [sys.executable, str(ROOT / ".ci" / "release.py"), "--target", str(target)]
    succeed([*script, "--no-install", "--tag", f"v{__version__}"])
    yield target


def test_release_is_complete(release: Path) -> None:
    wheel = release / f"tpuctl-{__version__}-py3-none-any.whl"
    sdist = release / f"tpuctl-{__version__}.tar.gz"
    sums = dict(
        reversed(line.split()) for line in (release / "SHA256SUMS").read_text("utf-8").splitlines()
    )
    assert sums == {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in (wheel, sdist)
    }
    notes = (release / "notes.md").read_text("utf-8")
    assert notes in (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert len(notes) > 500 and "\n## " not in notes
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "Makefile",
        "SECURITY.md",
        "tests/demo.py",
        "requirements/dev.lock",
        MAN_SOURCE,
    } <= names


def test_manual_page_has_every_command_and_is_valid() -> None:
    page = (ROOT / MAN_SOURCE).read_text("utf-8")
    reference = (ROOT / "docs" / "reference" / "commands.md").read_text("utf-8")
    sections = [title.replace("\\-", "-") for title in re.findall(r"(?m)^\.SS (.+)$", page)]
    assert sorted(sections) == sorted(re.findall(r"(?m)^## (.+)$", reference))
    if shutil.which("mandoc"):
        done = subprocess.run(
            ["mandoc", "-Tlint", MAN_SOURCE], cwd=ROOT, capture_output=True, text=True, check=False
        )
        problems = [line for line in done.stdout.splitlines() if "missing date" not in line]
    elif shutil.which("man"):
        done = succeed(["man", "--warnings", "--local-file", MAN_SOURCE], cwd=ROOT)
        problems = done.stderr.splitlines()
        assert "--stack-file PATH" in done.stdout
    else:
        pytest.skip("neither mandoc nor man is installed")
    assert not problems


def test_wheel_has_manual_page_and_completions(release: Path) -> None:
    (wheel,) = release.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        data = {
            name.partition(".data/data/")[2]: archive.read(name).decode()
            for name in archive.namelist()
            if ".data/data/" in name
        }
    page = (ROOT / MAN_SOURCE).read_text("utf-8")
    assert data == {MAN_PAGE: page, **{p: completion_script(s) for s, p in COMPLETIONS.items()}}
    assert {*COMPLETIONS} == {*SCRIPTS}


def test_release_requires_matching_tag_and_changelog(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / ".ci" / "release.py"), "--target", str(tmp_path / "x")]
    done = subprocess.run([*script, "--tag", "v9.9.9"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "the tag is v9.9.9" in done.stderr
    assert not (tmp_path / "x").exists()


@pytest.mark.soak
def test_release_runs_in_empty_environment_and_as_tool_of_uv(tmp_path: Path) -> None:
    target = tmp_path / "release"
    script = [sys.executable, str(ROOT / ".ci" / "release.py"), "--target", str(target)]
    succeed(script)
    (wheel,) = target.glob("*.whl")
    uv = Path(sys.executable).with_name("uv")
    folders = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    succeed([str(uv), "tool", "install", "--quiet", str(wheel)], env={**os.environ, **folders})
    done = succeed([str(tmp_path / "bin" / "tpuctl"), "--version"])
    assert done.stdout == f"tpuctl {__version__}\n"
    assert (tmp_path / "tools" / "tpuctl" / MAN_PAGE).exists()


@pytest.mark.soak
def test_tests_are_left_out_by_name_once_their_minutes_are_over() -> None:
    """So that continuous integration ends in time on a slow day."""
    command = [sys.executable, "-m", "pytest", "-q", "tests/unit/test_rooms.py", "--minutes"]
    over, enough = (
        subprocess.run([*command, minutes], cwd=ROOT, capture_output=True, text=True, check=False)
        for minutes in ("0", "5")
    )
    assert (over.returncode, enough.returncode) == (0, 0)
    assert "Not started, as no time was left (--minutes): tests/unit/test_rooms.py::" in over.stdout
    assert "passed" not in over.stdout
    assert "Not started" not in enough.stdout and "passed" in enough.stdout
