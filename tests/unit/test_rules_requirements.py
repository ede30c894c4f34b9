"""Requirements that a worker cannot install, files that are not read, and newer Pythons."""

from __future__ import annotations

import builtins
import importlib
import subprocess
import sys
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from tests.support.rule_checker import RuleChecker
from tpuctl import interpreters
from tpuctl.errors import Refused
from tpuctl.flows.jobs.check import refuse_errors
from tpuctl.model.events import Event, WarningIssued
from tpuctl.model.jobs.installation import Installation
from tpuctl.model.stack.stack import load_stack
from tpuctl.preflight.check import check_project
from tpuctl.preflight.findings import Severity, Target
from tpuctl.preflight.rules.job.tpu507_newer_python import NAMES
from tpuctl.preflight.submit_gate import check_runnable, runnable

BASE = Target(image="tpu-ubuntu2204-base")
IMPORT = "import six\n"


# TPU508 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "six @ file:///croot/six_1699999999999/work",
        "six @ file:///C:/ci_311/six_1676494/work",
        "-e file:///home/me/project#egg=project",
        "/home/me/six-1.0.whl",
        "-e ../shared",
        "numpy=1.26.4=py311h64a7726_0",
        "numpy=1.26.4",
    ],
)
def test_paths_of_another_computer_are_errors(tmp_path: Path, line: str) -> None:
    text = f"# one\n{line}\nrich\n"
    (finding,) = RuleChecker(tmp_path, "TPU508").findings(IMPORT, BASE, {"requirements.txt": text})
    assert (finding.path.name, finding.line, finding.severity) == ("requirements.txt", 2, "error")
    assert finding.hint
    setup = Target(installs_more=True)
    (risk,) = RuleChecker(tmp_path, "TPU508").findings(IMPORT, setup, {"requirements.txt": text})
    assert risk.severity == "risk"


@pytest.mark.parametrize(
    "line",
    [
        "six==1.16.0 --hash=sha256:ab",
        "jax[tpu]>=0.4,!=0.5.*  # file:///a",
        "./libs/helper",
        "-e .",
        "-r more.txt",
        "six @ https://example.com/six.whl",
        "six @ git+https://example.com/six@v1#subdirectory=python",
        "--index-url=https://example.com/simple",
        "--find-links=wheels",
        "--extra-index-url https://example.com/a=b",
        "six; python_version=='3.10'",
    ],
)
def test_what_pip_can_use_is_no_finding(tmp_path: Path, line: str) -> None:
    files = {"requirements.txt": f"{line}\n", "more.txt": "rich\n"}
    assert RuleChecker(tmp_path, "TPU508").findings(IMPORT, BASE, files) == []


@pytest.mark.parametrize(
    ("encoding", "head", "is_readable"),
    [
        ("cp949", "", False),
        ("euc-kr", "", False),
        ("cp949", "# -*- coding: cp949 -*-\n", True),
        ("utf-8", "", True),
        ("utf-8-sig", "", True),
        ("utf-16", "", True),
    ],
)
def test_encoding_of_requirements(
    tmp_path: Path, encoding: str, head: str, is_readable: bool
) -> None:
    (tmp_path / "more.txt").write_bytes(f"{head}rich\n# 한글\n".encode(encoding))
    files = {"requirements.txt": "-r more.txt\n"}
    findings = RuleChecker(tmp_path, "TPU508").findings(IMPORT, BASE, files)
    assert [(each.path.name, each.line) for each in findings] == (
        [] if is_readable else [("more.txt", 2)]
    )


def test_dependencies_of_a_project_are_checked_too(tmp_path: Path) -> None:
    text = '[project]\nname = "a"\ndependencies = [\n  "six @ file:///croot/six/work",\n]\n'
    (finding,) = RuleChecker(tmp_path, "TPU508").findings(IMPORT, BASE, {"pyproject.toml": text})
    assert (finding.path.name, finding.line) == ("pyproject.toml", 4)


# Files that are not read -------------------------------------------------------------------------


def notes(folder: Path, source: str = IMPORT, target: Target = BASE) -> list[str]:
    script = folder / "train.py"
    script.write_text(source)
    return [f"{note.path.name}: {note.message}" for note in check_project(script, target).notes]


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("environment.yml", "requirements.txt"),
        ("environment.yaml", "requirements.txt"),
        ("Pipfile", "pipenv requirements > requirements.txt"),
        ("setup.py", "requirements.txt"),
        ("setup.cfg", "requirements.txt"),
        ("pixi.toml", "requirements.txt"),
        ("requirements-tpu.txt", "job.requirements to requirements-tpu.txt"),
        ("requirements/base.txt", "job.requirements to requirements/base.txt"),
    ],
)
def test_dependencies_elsewhere_are_noted(tmp_path: Path, name: str, advice: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    (note,) = notes(tmp_path)
    assert note.startswith(f"{Path(name).name}: not read, and nothing else installs six: ")
    assert advice in note
    # Nothing is missing.
    assert notes(tmp_path, "import json\n") == []
    assert notes(tmp_path, "import numpy, tensorflow\n", Target(tensorflow="2.18.0")) == []
    assert notes(tmp_path, target=Target(installs_more=True)) == []
    # Something is installed.
    assert notes(tmp_path, '# /// script\n# dependencies = ["six"]\n# ///\nimport six\n') == []
    (tmp_path / "requirements.txt").touch()
    assert notes(tmp_path) == []


def test_poetry_without_a_build_system_is_noted(tmp_path: Path) -> None:
    text = '[tool.poetry.dependencies]\nsix = "^1"\n'
    (tmp_path / "pyproject.toml").write_text(text)
    (note,) = notes(tmp_path)
    assert note.startswith("pyproject.toml: not read")
    (tmp_path / "pyproject.toml").write_text(text + "[build-system]\nrequires = []\n")
    assert notes(tmp_path) == []


# TPU507 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    f()\nexcept* ValueError:  # \n    pass\nf = 1",
        "import tomllib",
        "from tomllib import loads",
        "from datetime import UTC",
        "import datetime\nnow = datetime.datetime.now(datetime.UTC)",
        "from enum import Enum, StrEnum",
        "from typing import Self",
        "import typing as t\ndef f() -> t.Self: ...",
        "import asyncio\nasync def f():\n    async with asyncio.TaskGroup():\n        pass",
        "error = ExceptionGroup('a', [])",
        "from itertools import batched",
        "from warnings import deprecated",
        "import annotationlib",
        "def f(a):\n    return a[*a]",
        "def f(*a: *tuple[int]): ...",
    ],
)
def test_newer_python_is_reported_once(tmp_path: Path, source: str) -> None:
    (finding,) = RuleChecker(tmp_path, "TPU507").findings(source, BASE, {})
    assert finding.severity == ("risk" if "TaskGroup" in source else "error")  # in a function
    assert "needs Python 3.1" in finding.message
    assert "the image has Python 3.10" in finding.message


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    import tomllib\nexcept ImportError:\n    import tomli as tomllib",
        "try:\n    from typing import Self\nexcept ImportError:\n    Self = object",
        "import sys\nif sys.version_info >= (3, 11):\n    import tomllib",
        "import sys\nif sys.version_info < (3, 11):\n    ExceptionGroup = list\nExceptionGroup()",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from typing import Self",
        "try:\n    from enum import StrEnum\nexcept ImportError:\n    class StrEnum(str): ...",
        "from exceptiongroup import ExceptionGroup\nExceptionGroup('a', [])",
        "from typing_extensions import Self",
        "from __future__ import annotations\nimport typing as t\ndef f(a: t.Self) -> t.Self: ...",
        "class UTC: ...\nUTC()",
        "def f(a):\n    return a[(*a,)], a[1:2, 3]",
        "match 1:\n    case _:\n        pass",
        "import enum\nclass A(enum.Enum): ...",
        "import datetime\nif hasattr(datetime, 'UTC'):\n    a = datetime.UTC",
    ],
)
def test_guarded_or_available_names_are_not_reported(tmp_path: Path, source: str) -> None:
    assert RuleChecker(tmp_path, "TPU507").findings(source, BASE, {}) == []


@pytest.mark.parametrize(
    "target",
    [
        Target(),  # no stack file
        Target(image="of-2027"),  # not in the catalog
        Target(image="tpu-vm-tf-2.18.0-pjrt-v5p-and-below", tensorflow="2.18.0"),
        Target(image="tpu-vm-cos-stable"),
        Target(image="ubuntu-os-accelerator-images/of-tpu7x", python="3.12"),
        Target(kind="node", tensorflow="2.12.0"),
    ],
)
def test_unknown_or_newer_pythons_are_not_judged(tmp_path: Path, target: Target) -> None:
    assert RuleChecker(tmp_path, "TPU507").findings("import tomllib\n", target, {}) == []


def test_newer_names_where_they_may_not_run_are_risks(tmp_path: Path) -> None:
    checker = RuleChecker(tmp_path, "TPU507")
    files = {"always.py": "import tomllib\n", "lazily.py": "import tomllib\n"}
    source = "import always\ndef f():\n    import lazily\n"
    severities = {each.path.name: each.severity for each in checker.findings(source, BASE, files)}
    assert severities == {"always.py": "error", "lazily.py": "risk"}
    setup = Target(image=BASE.image, installs_more=True)
    (risk,) = checker.findings("import tomllib\n", setup, {})
    assert risk.severity == "risk"
    shadow = {"tomllib.py": ""}
    assert checker.findings("import tomllib\n", BASE, shadow) == []


@pytest.mark.parametrize(
    ("clauses", "is_excluded"),
    [
        (">=3.11", True),
        (">=3.11,<3.14", True),
        ("==3.12.*", True),
        ("<3.10", True),
        (">=3.10", False),
        (">=3.10.4", False),
        ("<3.10.5", False),
        ("~=3.8", False),
        ("", False),
    ],
)
def test_python_required_by_metadata(tmp_path: Path, clauses: str, is_excluded: bool) -> None:
    checker = RuleChecker(tmp_path, "TPU507")
    text = f'[project]\nname = "a"\nrequires-python = "{clauses}"\n'
    build = "[build-system]\nrequires = []\n"
    poetry = f'[tool.poetry.dependencies]\npython = "{clauses.replace(">=", "^")}"\n'
    script = f'# /// script\n# requires-python = "{clauses}"\n# ///\n'
    for files, source, severity, line in (
        ({"pyproject.toml": text}, "", "risk", 3),
        ({"pyproject.toml": text + build}, "", "error", 3),
        ({"pyproject.toml": poetry + build}, "", "error", 2),
        ({"pyproject.toml": ""}, script, "risk", 2),
    ):
        findings = checker.findings(source, BASE, files)
        expected = [(severity, line)] if is_excluded else []
        assert [(each.severity, each.line) for each in findings] == expected


@pytest.mark.parametrize(
    ("name", "text", "severity"),
    [
        (
            "uv.lock",
            'version = 1\nrequires-python = ">=3.12"\n[[package]]\nname = "a"\n',
            "error",
        ),
        ("pylock.toml", 'lock-version = "1.0"\nrequires-python = ">=3.12"\n', "error"),
        ("pyproject.toml", '[project]\nrequires-python = ">=3.12"\n[build-system]\n', "error"),
        ("pyproject.toml", '[project]\nrequires-python = ">=3.12"\n', "risk"),
        ("train.py", '# /// script\n# requires-python = ">=3.12"\n# ///\n', "risk"),
    ],
)
def test_files_that_exclude_the_job_python(
    tmp_path: Path, name: str, text: str, severity: str
) -> None:
    checker = RuleChecker(tmp_path, "TPU507")
    source, files = (text, {}) if name == "train.py" else ("", {name: text})
    if name == "uv.lock":
        files["pyproject.toml"] = '[project]\nname = "a"\n'
    for pythons, whose in (((), "the image has Python 3.10"), (("3.11",), "runs on Python 3.11")):
        target = Target(image=BASE.image)
        if pythons:
            target = Target(python=pythons[0], pythons=pythons, asked_by="job.python")
        (finding,) = checker.findings(source, target, files)
        assert (finding.path.name, finding.line, finding.severity) == (name, 2, severity)
        assert whose in finding.message
        assert finding.hint.endswith("\n    job: {python: '3.12'}")
    may = Target(python="3.11", pythons=("3.11", "3.12"), asked_by="job.python")
    assert checker.findings(source, may, files) == []


STACK = """
stack: s
project: {id: p-123456}
tpu: {type: v5litepod-1, runtime: v2-alpha-tpuv5-lite, zones: [us-east1-c]}
job: {framework: other}
"""


def test_run_warns_of_files_that_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "tpuctl.yaml").write_text(STACK)
    (tmp_path / "environment.yml").touch()
    script = tmp_path / "train.py"
    script.write_text(IMPORT)
    events: list[Event] = []
    refuse_errors(load_stack(tmp_path / "tpuctl.yaml"), runnable(str(script)), events.append)
    (event,) = events
    assert isinstance(event, WarningIssued)
    assert "environment.yml: not read" in event.diagnostic.detail


def test_check_and_run_refuse_a_source_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "tpuctl.yaml").write_text(STACK)
    (tmp_path / "train.py").write_text("print(1)\n")
    project = '[project]\nname = "a"\ndependencies = ["helper"]\n[tool.uv.sources]\n'
    (tmp_path / "pyproject.toml").write_text(project + 'helper = { index = "own" }\n')
    for command in ("check", "run"):
        argv = [sys.executable, "-m", "tpuctl", "--cloud", "google", command, "train.py"]
        answer = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert answer.returncode == 65
        assert "pyproject.toml:5: Source of a dependency is not known to pip" in answer.stderr
        assert "tool.uv.sources.helper" in answer.stderr


def test_syntax_of_a_newer_image_is_no_error(tmp_path: Path) -> None:
    """What the Python that runs tpuctl cannot parse may be valid there."""
    script = tmp_path / "train.py"
    script.write_text("type\n X = of some later version\n")
    for python, severity in (("3.10", "error"), ("3.99", "risk")):
        (finding,) = check_project(script, Target(python=python)).findings
        assert (finding.code, finding.severity) == ("TPU000", severity)
    with pytest.raises(Refused):
        check_runnable(runnable(str(script)), Installation())
    check_runnable(runnable(str(script)), Installation(), is_newer_python=True)


@pytest.mark.parametrize(
    ("pythons", "output", "code", "severity", "line", "message"),
    [
        (("3.99",), "", 0, "risk", 2, "not checked: it is valid Python 3.99, but tpuctl runs on "),
        (("3.99",), "7 unknown word", 0, "error", 7, "not valid Python 3.99: unknown word"),
        (("3.98", "3.99"), "7 unknown word", 0, "risk", 7, "not valid Python 3.99: unknown word"),
        (("3.99",), "", 1, "risk", 2, "not read, as it is not valid Python 3."),
    ],
)
def test_an_interpreter_of_the_job_version_parses_what_this_one_cannot(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pythons: tuple[str, ...],
    output: str,
    code: int,
    severity: str,
    line: int,
    message: str,
) -> None:
    interpreter = tmp_path / "python3.99"
    interpreter.write_text(f"#!/bin/sh\nprintf '{output}'\nexit {code}\n", "utf-8")
    interpreter.chmod(0o755)
    asked: list[Sequence[str]] = []

    def find(minors: Sequence[str]) -> interpreters.Interpreter:
        asked.append(minors)
        return interpreters.Interpreter(str(interpreter), "3.99.1")

    monkeypatch.setattr(interpreters, "find", find)
    script = tmp_path / "train.py"
    script.write_text("x = 1\ntype X of some later version\n", "utf-8")
    target = Target(python=pythons[0], pythons=pythons, asked_by="job.python")
    (finding,) = check_project(script, target).findings
    assert (finding.severity.value, finding.line) == (severity, line)
    assert finding.message.startswith(message)
    assert asked == [[*pythons]]


NEWER_SYNTAX = {
    "type Batch = dict[str, int]\n": True,
    "def first[T](items: list[T]) -> T:\n    return items[0]\n": True,
    "names = ['a']\nprint(f'{', '.join(names)}')\n": True,
    "type Batch = = 1\n": False,
}


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="reads this syntax itself")
@pytest.mark.parametrize(("source", "is_valid"), NEWER_SYNTAX.items())
def test_syntax_of_python_3_12_is_read_by_it(tmp_path: Path, source: str, is_valid: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(source, "utf-8")
    if interpreters.find(["3.12"]) is None:
        pytest.skip("no Python 3.12 on this computer")
    target = Target(python="3.12", pythons=("3.12",), asked_by="job.python")
    (finding,) = check_project(script, target).findings
    assert ("it is valid Python 3.12" in finding.message) == is_valid
    assert (finding.severity is Severity.error) != is_valid
    (finding,) = check_project(script, Target(python="3.10")).findings
    assert finding.severity is Severity.error
    assert f"not valid Python 3.{sys.version_info[1]}: " in finding.message


def _member(value: Any, name: str) -> Any:
    return getattr(value, name, None)


def test_names_of_newer_pythons_are_absent_here() -> None:
    """The table against the interpreter that runs the tests."""

    def exists(name: str) -> bool:
        if hasattr(builtins, name):
            return True
        parts = name.split(".")
        for count in range(len(parts), 0, -1):
            try:
                value: Any = importlib.import_module(".".join(parts[:count]))
            except ImportError:
                continue
            return reduce(_member, parts[count:], value) is not None
        return False

    wrong = [
        name for name, version in NAMES.items() if exists(name) != (sys.version_info >= version)
    ]
    assert wrong == []
