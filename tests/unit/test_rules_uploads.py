"""TPU801: what a script imports and reads on this computer, and the job would not have."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tpuctl.cli.main import run
from tpuctl.jobs.upload_rules import upload_of
from tpuctl.model.stack.stack import load_stack
from tpuctl.preflight.check import check_folder, check_path, check_program, default_target
from tpuctl.preflight.findings import Finding, Severity
from tpuctl.preflight.submit_gate import runnable

STACK = "stack: s\nproject: {id: my-project}\ntpu: {type: v5litepod-1, zones: [us-east1-c]}\n"
POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)


class Monorepo:
    """A repository; its folder `jobs`, which is current, has the stack file and the script."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / "jobs"
        self.write({"../.git/HEAD": "ref: refs/heads/main\n", "tpuctl.yaml": STACK})

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = Path(os.path.normpath(self.folder / name))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")

    def findings(self, script: str, name: str = "train.py") -> list[Finding]:
        self.write({name: script})
        stack = load_stack(self.folder / "tpuctl.yaml")
        report = check_path(Path(name), default_target(), partial(upload_of, stack))
        return [finding for finding in report.findings if finding.code == "TPU801"]

    def finding(self, script: str) -> Finding:
        [finding] = self.findings(script)
        return finding


@pytest.fixture
def monorepo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Monorepo:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/nonexistent")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monorepo = Monorepo(tmp_path / "repository")
    monkeypatch.chdir(monorepo.folder)
    return monorepo


@pytest.mark.parametrize(
    ("ignore", "job", "rule", "remedy"),
    [
        ({".gitignore": "\nlocal_*.py\n"}, "", ".gitignore:2 (local_*.py)", "[/local_code.py]"),
        ({"../.gitignore": "/jobs/local_code.py"}, "", "../.gitignore:1 (", "[/local_code.py]"),
        ({".tpuctlignore": "local_code.py"}, "", ".tpuctlignore:1 (", "[/local_code.py]"),
        ({"../.git/info/exclude": "local_code.py"}, "", "../.git/info/exclude:1 (", "include"),
        ({}, "{exclude: ['local*']}", "job.exclude (local*)", "Remove local* from job.exclude"),
    ],
)
def test_import_that_is_not_uploaded_is_an_error_with_its_rule(
    monorepo: Monorepo, ignore: dict[str, str], job: str, rule: str, remedy: str
) -> None:
    script = "import os\n\nimport local_code\n"
    monorepo.write({**ignore, "local_code.py": "if x\n", "tpuctl.yaml": STACK})
    if job:
        monorepo.write({"tpuctl.yaml": f"{STACK}job: {job}\n"})
    finding = monorepo.finding(script)
    assert (finding.severity, finding.line) == (Severity.error, 3)
    assert f"local_code.py, which is not uploaded: {rule}" in finding.message
    assert remedy in finding.hint
    report = check_path(Path("train.py"), default_target(), partial(upload_of, None))
    codes = {finding.code for finding in report.findings}
    assert codes == {"TPU801" if ignore else "TPU000"}  # without the stack file's settings
    monorepo.write({"local_code.py": "", "tpuctl.yaml": f"{STACK}job: {{include: [/local*]}}\n"})
    assert monorepo.findings(script) == []


@pytest.mark.parametrize(
    ("script", "severities"),
    [
        ("def f():\n    import helper\n", ["risk"]),
        ("try:\n    import helper\nexcept ImportError:\n    pass\n", ["risk"]),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import helper\n", []),
        ("from package import inner\n", ["error"]),
        ("from package import other\n", []),
        ("import outer\n", ["risk"]),  # it imports helper
        ("import importlib\nimportlib.import_module('helper')\n", ["error"]),
    ],
)
def test_import_that_may_not_run_is_a_risk(
    monorepo: Monorepo, script: str, severities: list[str]
) -> None:
    monorepo.write(
        {
            ".gitignore": "helper.py\ninner.py\n",
            "helper.py": "",
            "outer.py": "import helper\n",
            "package/__init__.py": "",
            "package/inner.py": "",
            "package/other.py": "",
        }
    )
    assert [finding.severity.value for finding in monorepo.findings(script)] == severities


def test_import_from_another_folder_of_the_repository_is_named(
    monorepo: Monorepo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monorepo.write(
        {
            "../common/__init__.py": "",
            "../src/shared/data.py": "",
            "../../beyond.py": "",
            "../json/__init__.py": "",
            "../listed.py": "",
            "../jobs_too/x.py": "",
            "inside.py": "",
            "../inside.py": "",
            "requirements.txt": "Listed>=1\n",
        }
    )
    finding = monorepo.finding("import common\n")
    assert finding.severity is Severity.risk
    assert f"{monorepo.root}/common/__init__.py" in finding.message
    assert f"outside of the folder {monorepo.folder}" in finding.message
    assert "tpuctl run -m" in finding.hint
    assert monorepo.findings("import shared.data\n")
    assert not monorepo.findings("import beyond, json, listed, jobs_too, inside, unknown\n")
    monkeypatch.setenv("PYTHONPATH", f"/nonexistent{os.pathsep}{tmp_path}")
    assert monorepo.findings("import beyond\n")
    monkeypatch.chdir(monorepo.root)  # a folder that contains both
    program = runnable("jobs.train", "module")
    monorepo.write({"train.py": "import common\n"})
    report = check_program(program, default_target(), partial(upload_of, None))
    assert report.findings == ()
    assert monorepo.root / "common/__init__.py" in report.files


@pytest.mark.parametrize(
    ("call", "reads"),
    [
        ("open('config.json')", True),
        ("open('config.json', 'rb')", True),
        ("open('config.json', 'w')", False),
        ("open('config.json', mode='a')", False),
        ("NAME = 'config.json'\nopen(NAME)", True),
        ("from pathlib import Path\nPath('config.json').read_text()", True),
        ("from pathlib import Path\nPath('config.json').open('w')", False),
        ("from pathlib import Path\nPath('config.json').write_text('')", False),
        ("import pandas as pd\npd.read_json('config.json')", True),
        ("model.load_weights('config.json')", True),
        ("import os\nopen(os.path.join('data', 'x.csv'))", True),
        ("open('../outside.csv')", True),
        ("open('other.json')", False),
        ("open('absent.json')", False),
        ("open('gs://bucket/config.json')", False),
        ("print('config.json')", False),
        ("from dotenv import load_dotenv\nload_dotenv()", True),
        ("open('/Users/me/data.csv')", True),
        ("open('/etc/hosts')", False),
        ("open('weights.h5')", True),
        ("open('pipe')", False),
        (f"open('{'x' * 300}')", False),
    ],
)
def test_file_that_is_read_and_not_uploaded_is_a_risk(
    monorepo: Monorepo, call: str, reads: bool
) -> None:
    monorepo.write(
        {
            ".gitignore": "config.json\n/data/\n",
            "config.json": "{}",
            "other.json": "{}",
            "data/x.csv": "",
            "../outside.csv": "",
            ".env": "TOKEN=x",
            "weights.h5": POINTER,
        }
    )
    os.mkfifo(monorepo.folder / "pipe")
    findings = monorepo.findings(call + "\n")
    assert [finding.severity for finding in findings] == [Severity.risk] * reads
    if "weights.h5" in call:
        assert "git lfs pull" in findings[0].hint
    if "dotenv" in call:
        assert "job.secrets" in findings[0].hint


def test_files_that_git_lfs_has_not_downloaded_are_named_once(monorepo: Monorepo) -> None:
    files = {f"data/{number}.bin": POINTER for number in range(6)}
    monorepo.write({**files, "ignored.bin": POINTER, "real.bin": "x", ".gitignore": "ignored*"})
    assert monorepo.findings("print()\n") == []  # the folder is not searched without attributes
    monorepo.write({"../.gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n"})
    finding = monorepo.finding("print()\n")
    names = ", ".join(f"data/{number}.bin" for number in range(5))
    assert finding.message.endswith(f"{names} and 1 more")
    assert (finding.severity, finding.line) == (Severity.risk, 1)
    assert "git lfs pull" in finding.hint
    folder = check_folder(Path(), default_target(), upload_of(None, Path(), None))
    assert [each.message for each in folder.findings] == [finding.message]


def test_tracked_file_counts_as_uploaded(monorepo: Monorepo) -> None:
    script = "import json\nimport helper\njson.load(open('config.json'))\n"
    monorepo.write({".gitignore": "config.json\nhelper.py\n", "config.json": "", "helper.py": ""})
    assert len(monorepo.findings(script)) == 2
    subprocess.run(["git", "init", "-q"], cwd=monorepo.root, check=True)
    subprocess.run(["git", "add", "-f", "."], cwd=monorepo.root, check=True)
    assert monorepo.findings(script) == []


def test_script_that_is_not_uploaded_is_refused_before_anything_starts(
    monorepo: Monorepo, capsys: pytest.CaptureFixture[str]
) -> None:
    monorepo.write({".gitignore": "scratch*\n", "scratch.py": "print()\n", "train.py": ""})
    assert run(["run", "--up", "--yes", "scratch.py"]) == 65
    error = capsys.readouterr().err
    assert "the script is not uploaded: .gitignore:1 (scratch*)" in error
    assert "job: {include: [/scratch.py]}" in error
    program = monorepo.folder / "scratch.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for words in (["--", "./scratch.sh"], ["scratch.sh"], ["-m", "scratch"]):
        assert run(["run", "--up", "--yes", *words]) == 65
        assert ".gitignore:1 (scratch*)" in capsys.readouterr().err
    checked = check_folder(Path(), default_target(), upload_of(None, Path(), None))
    assert checked.files == (monorepo.folder / "train.py",)
    assert run(["check", "scratch.py"]) == 1


def test_folder_that_is_reached_through_a_link_is_the_same(
    monorepo: Monorepo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monorepo.write({"helper.py": "", ".gitignore": "x.py\n", "x.py": ""})
    (tmp_path / "link").symlink_to(monorepo.folder)
    (monorepo.folder / "linked").symlink_to(tmp_path / "other")
    monorepo.write({"../../other/y.py": "", "train.py": "import helper, linked.y\n"})
    report = check_path(tmp_path / "link/train.py", default_target(), partial(upload_of, None))
    assert report.findings == ()
    monorepo.write({"train.py": "import x\n"})
    report = check_path(tmp_path / "link/train.py", default_target(), partial(upload_of, None))
    assert len(report.errors) == 1


OWN = {
    "import package.data\n": "error",
    "from package import data\n": "error",
    "from package.data import load\n": "error",
    "def main():\n    import package.data\n": "risk",
    "try:\n    import package.data\nexcept ImportError:\n    pass\n": "risk",
    "import package\n": None,  # may be an installed package of that name
    "from package.other import load\n": None,
    "import data\n": None,
}


@pytest.mark.parametrize("is_repository", [True, False])
@pytest.mark.parametrize(("line", "severity"), OWN.items())
def test_a_script_in_a_package_that_imports_it_needs_m(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    severity: str | None,
    is_repository: bool,
) -> None:
    """A job has the script's folder on the path, as `python package/train.py` does."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "data.py").write_text("def load(): ...\n", "utf-8")
    (package / "train.py").write_text(line, "utf-8")
    if is_repository:
        (tmp_path / ".git").mkdir()
        (tmp_path / ".git/HEAD").write_text("ref: refs/heads/main\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    for init in (package / "__init__.py", None):
        report = check_path(Path("package/train.py"), default_target(), partial(upload_of, None))
        findings = [finding for finding in report.findings if " -m package.train" in finding.hint]
        assert [finding.severity.value for finding in findings] == ([severity] if severity else [])
        assert all("ModuleNotFoundError" in finding.message for finding in findings)
        assert (
            check_program(
                runnable("package.train", "module"), default_target(), partial(upload_of, None)
            ).findings
            == ()
        )
        if init is not None:
            init.touch()


def test_a_script_in_a_package_of_a_src_folder_is_run_from_above_it(tmp_path: Path) -> None:
    package = tmp_path / "src/package"
    package.mkdir(parents=True)
    (package / "data.py").write_text("", "utf-8")
    script = package / "__main__.py"
    script.write_text("import package.data\nimport package.data as again\n", "utf-8")
    [finding] = check_path(script, default_target(), partial(upload_of, None)).findings
    assert finding.hint == f"Run it as a module:\n    cd {tmp_path}\n    tpuctl run -m package"
    (package / "requirements.txt").write_text("package==1.0\n", "utf-8")
    assert check_path(script, default_target(), partial(upload_of, None)).findings == ()
