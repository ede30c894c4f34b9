"""Every rule has a page, and its examples behave as the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tpuctl.preflight.check import check_project
from tpuctl.preflight.findings import Rule, Severity
from tpuctl.preflight.rules import RULES

DOCS = Path(__file__).resolve().parents[2] / "docs"
# None of these may be removed, even from both the rules and the page; new ones need not be listed.
PUBLISHED = (
    *("TPU000", "TPU001", "TPU002", "TPU003", "TPU004", "TPU005", "TPU006"),
    *("TPU101", "TPU102", "TPU103", "TPU104", "TPU105", "TPU106"),
    *("TPU201", "TPU202", "TPU203", "TPU204"),
    *("TPU301", "TPU302", "TPU303", "TPU304"),
    *("TPU401", "TPU402", "TPU403", "TPU404", "TPU405", "TPU406"),
    *("TPU501", "TPU502", "TPU503", "TPU504", "TPU505"),
    *(f"TPU6{number:02}" for number in range(1, 13)),
    *("TPU701", "TPU702", "TPU703", "TPU704", "TPU705"),
)
# Names that silence a rule where code uses them.
WORDS = (
    "mark_step sync( DeviceLoader barrier=True torch_xla.compile eager openxla Trainer lightning",
    "optimizer_step all_reduce DDP FSDP xla_sharding accelerate xla_device torch_xla.device()",
    "shard mesh pmap psum partition in_shardings replicate process_index np.random.seed(0)",
    "jax_enable_x64 JAX_ENABLE_X64 TF_USE_LEGACY_KERAS TFRecordWriter hasattr version",
    "gsutil cp, google.cloud, push_to_hub, fsspec, def group_texts(texts): strategy.scope()",
)
# Comments in a file that cannot be parsed are not read.
SILENCED = [rule for rule in RULES.values() if rule.code != "TPU000"]


def codes_of(folder: Path, rule: Rule, text: str) -> list[str]:
    """The codes reported for an example."""
    script = folder / "train.py"
    script.write_text(text, "utf-8")
    return [finding.code for finding in check_project(script, rule.target).findings]


def test_published_codes_exist() -> None:
    """Codes of the page are used in comments and pipelines, so they must not disappear."""
    page = (DOCS / "reference" / "rules.md").read_text("utf-8")
    assert re.findall(r"^## (TPU\d+) ", page, re.MULTILINE) == list(RULES)
    assert set(PUBLISHED) <= set(RULES)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_texts_are_complete(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", rule.name), rule.name
    assert len({rule.name for rule in RULES.values()}) == len(RULES)
    assert "\n" not in rule.summary
    for text in (rule.summary, rule.rationale):
        assert text[0].isupper() or text.startswith(("`", "tf.")), text
    assert rule.rationale.endswith(".")
    assert len(rule.summary) <= 100
    assert len(rule.rationale) > len(rule.summary)
    assert rule.severity in Severity
    assert rule.bad != rule.good
    for text in (rule.bad, rule.good):
        assert max(map(len, text.splitlines())) <= 100, "fits the page"


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_bad_example_is_reported(tmp_path: Path, rule: Rule) -> None:
    assert set(codes_of(tmp_path, rule, rule.bad)) == {rule.code}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_good_example_has_no_findings(tmp_path: Path, rule: Rule) -> None:
    assert codes_of(tmp_path, rule, rule.good) == []


@pytest.mark.parametrize("rule", SILENCED, ids=lambda rule: rule.code)
def test_comment_suppresses_rule(tmp_path: Path, rule: Rule) -> None:
    text = f"# tpuctl: ignore-file[{rule.code}]\n{rule.bad}"
    assert codes_of(tmp_path, rule, text) == []


@pytest.mark.parametrize("rule", SILENCED, ids=lambda rule: rule.code)
def test_comment_suppresses_line(tmp_path: Path, rule: Rule) -> None:
    assert codes_of(tmp_path, rule, rule.bad)
    report = check_project(tmp_path / "train.py", rule.target)
    lines = rule.bad.splitlines()
    for finding in report.findings:
        lines[finding.line - 1] += f"  # tpuctl: ignore[{finding.code}]"
    assert codes_of(tmp_path, rule, "\n".join(lines) + "\n") == []


@pytest.mark.parametrize("rule", SILENCED, ids=lambda rule: rule.code)
def test_words_of_comments_and_docstrings_silence_no_rule(tmp_path: Path, rule: Rule) -> None:
    comments = "\n".join(f"# {words}" for words in WORDS)
    docstring = "\n".join(("def unused():", '    """', *WORDS, '    """'))
    before = codes_of(tmp_path, rule, rule.bad)
    assert codes_of(tmp_path, rule, f"{rule.bad}\n\n{docstring}\n{comments}\n") == before
