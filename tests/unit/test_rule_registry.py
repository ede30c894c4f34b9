"""A rule is there when its file is, and all that must be said of one is asked of every file."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tpuctl
from tpuctl.preflight.findings import Rule
from tpuctl.preflight.rules import FINDERS, RULES

ROOT = Path(__file__).resolve().parents[2]
PLACE = "tpuctl/preflight/rules"
PAGE = "docs/reference/rules.md"
FILES = sorted(path.stem for path in (ROOT / PLACE).glob("[!_]*.py"))
TOY = '''"""TPU901 cubed."""

from __future__ import annotations

from collections.abc import Iterator

from tpuctl.preflight.analysis.inference import inferred
from tpuctl.preflight.analysis.source_findings import at, shown
from tpuctl.preflight.analysis.source import Project
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

__all__ = ["RULE", "find"]

RULE = Rule(
    code="TPU901",
    name="cubed",
    severity=Severity.cost,
    summary="A cube in code that is compiled",
    why="A toy: nothing is wrong with cubes.",
    bad="""\\
import tensorflow as tf


@tf.function
def step(x):
    return tf.pow(x, 3)
""",
    good="""\\
import tensorflow as tf


@tf.function
def step(x):
    return x * x * x
""",
)


def find(project: Project, target: Target) -> Iterator[Finding]:
    known = inferred(project, target)
    for one, node, function in known.array_calls:
        if function == "pow":
            yield at(RULE, one, node, f"{shown(one.module, node)} is a cube", "Multiply.")
'''


def rule_of(file: str) -> Rule:
    module = importlib.import_module(f"tpuctl.preflight.rules.{file}")
    assert isinstance(getattr(module, "RULE", None), Rule), f"{PLACE}/{file}.py has no RULE"
    assert callable(getattr(module, "find", None)), f"{PLACE}/{file}.py has no find"
    rule: Rule = module.RULE
    return rule


@pytest.mark.parametrize("file", FILES)
def test_a_file_is_a_rule_of_its_name(file: str) -> None:
    rule = rule_of(file)
    name = f"{rule.code} {rule.name}".lower().replace(" ", "_").replace("-", "_")
    assert file == name, f"{PLACE}/{file}.py is of {rule.code}: name it {name}.py"
    assert RULES.get(rule.code) is rule, f"{PLACE}/{file}.py: another file has {rule.code} too"
    assert rule.code in FINDERS


@pytest.mark.parametrize("file", FILES)
def test_all_is_said_of_it(file: str) -> None:
    rule = rule_of(file)
    for part in ("summary", "why", "bad", "good"):
        assert getattr(rule, part).strip(), f"{PLACE}/{file}.py: RULE says nothing as {part}"
    section = rf"^## {rule.code} {rule.name}$"
    page = (ROOT / PAGE).read_text("utf-8")
    assert re.search(section, page, re.MULTILINE), f"{PAGE} lacks {rule.code}: make docs"


@pytest.mark.parametrize("file", FILES)
def test_it_has_cases(file: str) -> None:
    """Beside its examples: a file of its own, or a test that names it."""
    own = Path("tests") / "cases" / "check" / f"{file}.toml"
    tests = [path for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__)]
    is_named = any(rule_of(file).code in path.read_text("utf-8") for path in tests)
    assert is_named or (ROOT / own).is_file(), f"{file} has no cases: write {own}"


def test_cases_are_of_rules() -> None:
    others = {path.stem for path in (ROOT / "tests" / "cases" / "check").iterdir()} - set(FILES)
    assert not others, f"tests/cases/check has files of no rule: {sorted(others)}"


def test_a_rule_is_added_by_one_file(tmp_path: Path) -> None:
    """The package as it is, with one more file in it: found, selected, explained and silenced."""
    original = Path(tpuctl.__file__).parent
    package = tmp_path / "tpuctl"
    for folder in (package, package / "preflight", package / "preflight" / "rules"):
        folder.mkdir()
        for path in (original / folder.relative_to(package)).iterdir():
            if path.name not in ("preflight", "rules", "__pycache__"):
                (folder / path.name).symlink_to(path)
    (package / "preflight" / "rules" / "tpu901_cubed.py").write_text(TOY, "utf-8")
    script = tmp_path / "train.py"
    script.write_text(rule_of_text(TOY).bad, "utf-8")

    def check(*arguments: str) -> list[str]:
        command = [sys.executable, "-m", "tpuctl", "check", *arguments, "--json"]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "HOME": str(tmp_path)}
        run = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, check=True, text=True
        )
        data = json.loads(run.stdout)["data"]
        return [one["code"] for one in data.get("rules", data.get("findings"))]

    assert check("train.py") == ["TPU901"]
    assert check("train.py", "--select", "TPU1") == []
    assert check("--explain", "cubed") == ["TPU901"]
    script.write_text(f"# tpuctl: ignore-file[cubed]\n{script.read_text('utf-8')}", "utf-8")
    assert check("train.py") == []


def rule_of_text(text: str) -> Rule:
    space: dict[str, object] = {}
    exec(compile(text, "toy", "exec"), space)
    assert isinstance(space["RULE"], Rule)
    return space["RULE"]
