"""A rule is registered by its file, and every file declares all required parts."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from tpuctl.preflight.findings import Rule
from tpuctl.preflight.rules import FINDERS, RULES

ROOT = Path(__file__).resolve().parents[2]
PLACE = "tpuctl/preflight/rules"
PAGE = "docs/reference/rules.md"
FILES = sorted(
    path.relative_to(ROOT / PLACE).with_suffix("").as_posix()
    for path in (ROOT / PLACE).rglob("[!_]*.py")
)
NAMES = {Path(file).name for file in FILES}


def rule_of(file: str) -> Rule:
    module = importlib.import_module(f"{PLACE}/{file}".replace("/", "."))
    assert isinstance(getattr(module, "RULE", None), Rule), f"{PLACE}/{file}.py has no RULE"
    assert callable(getattr(module, "find", None)), f"{PLACE}/{file}.py has no find"
    rule: Rule = module.RULE
    return rule


@pytest.mark.parametrize("file", FILES)
def test_rule_file_is_named_after_rule(file: str) -> None:
    rule = rule_of(file)
    name = f"{rule.code} {rule.name}".lower().replace(" ", "_").replace("-", "_")
    assert Path(file).name == name, f"{PLACE}/{file}.py defines {rule.code}: rename it to {name}.py"
    assert "/" in file, f"{PLACE}/{file}.py: move it to a package of rules"
    assert RULES.get(rule.code) is rule, f"{PLACE}/{file}.py: another file also defines {rule.code}"
    assert rule.code in FINDERS


@pytest.mark.parametrize("file", FILES)
def test_rule_has_texts_and_page(file: str) -> None:
    rule = rule_of(file)
    for part in ("summary", "rationale", "bad", "good"):
        assert getattr(rule, part).strip(), f"{PLACE}/{file}.py: RULE.{part} is empty"
    section = rf"^## {rule.code} {rule.name}$"
    page = (ROOT / PAGE).read_text("utf-8")
    assert re.search(section, page, re.MULTILINE), f"{PAGE} lacks {rule.code}: make docs"


@pytest.mark.parametrize("file", FILES)
def test_rule_has_cases(file: str) -> None:
    """In addition to its examples: a file of cases, or a test that names it."""
    cases = Path("tests") / "cases" / "check" / f"{Path(file).name}.toml"
    tests = [path for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__)]
    is_named = any(rule_of(file).code in path.read_text("utf-8") for path in tests)
    assert is_named or (ROOT / cases).is_file(), f"{file} has no cases: write {cases}"


def test_case_files_belong_to_rules() -> None:
    others = {path.stem for path in (ROOT / "tests" / "cases" / "check").iterdir()} - NAMES
    assert not others, f"tests/cases/check has files without a rule: {sorted(others)}"
