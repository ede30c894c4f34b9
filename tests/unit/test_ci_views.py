"""Views for CI: summaries, annotations, code quality reports, and errors that CI steps rely on."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import google.api_core.exceptions as api
import pytest
from google.auth.exceptions import RefreshError

from tests.support.job_records import job_record
from tpuctl.cloud.credential_errors import is_signed_out
from tpuctl.cloud.errors import convert
from tpuctl.errors import TpuctlError
from tpuctl.jobs.file_selection import FileRules
from tpuctl.model.jobs.explanation import Explanation
from tpuctl.model.jobs.failures import Failure
from tpuctl.model.jobs.job import JobRecord, JobStatus
from tpuctl.model.jobs.report import AttemptReport, RunReport
from tpuctl.model.logs.curves import Curve
from tpuctl.preflight.findings import Finding, Report, Severity
from tpuctl.view.ci.file_locations import base_folder
from tpuctl.view.ci.github_annotations import run_annotation
from tpuctl.view.ci.gitlab_code_quality import code_quality
from tpuctl.view.ci.summary import markdown, sparkline

BEGIN = datetime(2026, 11, 21, 6, 0, tzinfo=UTC)


def record(*arguments: str) -> JobRecord:
    return job_record(id="20261121-060000-hazel", args=arguments, zone="us-east1-b")


def report(failure: Failure | None = None, lines: tuple[str, ...] = ()) -> RunReport:
    finished = record("--name", "a|b `c`")
    status = JobStatus("succeeded", 0) if failure is None else JobStatus("failed", 3)
    attempt = AttemptReport(finished, {}, None, BEGIN, BEGIN + timedelta(minutes=90), 2.0)
    loss = Curve("loss")
    for step in range(1, 101):
        loss.add(step, 8 / step)
    why = Explanation(finished, status, failure, lines)
    return RunReport(why, "v3-8", "tf", (attempt,), (loss,), BEGIN)


def test_summary_has_result_duration_cost_and_curves() -> None:
    text = markdown(report(), link="https://x.example/a(1)", command_prefix="tpuctl")
    assert text.startswith("## TPU job 20261121-060000-hazel: succeeded\n")
    rows = dict(re.findall(r"^\| (\w+) \| (.*) \|$", text, re.MULTILINE))
    assert rows["Ran"] == "1 h 30 min"
    assert rows["Cost"] == "about $3.00"
    free = markdown(replace(report(), is_free=True), link="", command_prefix="tpuctl")
    assert "| Cost | nothing; about $3.00 on Google |" in free
    assert rows["TPU"] == "v3-8 in us-east1-b"
    assert rows["loss"].startswith("8 | 0.08 | step 100 | `█")
    assert "(https://x.example/a(1%29)" in text
    assert "`tpuctl report 20261121-060000-hazel`" in text


def test_foreign_text_is_escaped_in_summary() -> None:
    failure = Failure("failure", "script", "it <b>broke</b> | [x](y)", "Mend it:\n    ```\n    fix")
    text = markdown(report(failure, ("```", "<script>")))
    assert "### it \\<b\\>broke\\</b\\> \\| \\[x\\](y)" in text
    # Each block's fence is longer than any inside it.
    assert text.count("````text\n") == 2
    row = next(line for line in text.splitlines() if line.startswith("| Command"))
    assert len(re.findall(r"(?<!\\)\|", row)) == 3
    assert sparkline([(1, 0.0), (2, 3.0), (3, 7.0)]) == "▁▄█"
    assert sparkline([(step, 5.0) for step in range(100)], 10) == "▁" * 10
    assert len(sparkline([(step, float(step)) for step in range(1000)], 24)) == 24
    assert sparkline([]) == ""


def test_annotation_is_one_escaped_line() -> None:
    failure = Failure("failure", "script", "100% wrong, here: there", "Do\n    this")
    line = run_annotation(report(failure))
    assert "\n" not in line
    assert line.startswith(
        "::error title=TPU job 20261121-060000-hazel%3A failed with exit code 3::"
    )
    assert line.endswith("::100%25 wrong, here: there%0ADo%0A    this")
    assert run_annotation(report()).startswith("::notice title=")


def test_code_quality_matches_gitlab_format(tmp_path: Path) -> None:
    """docs.gitlab.com, Code Quality: the required fields of an entry."""
    file = tmp_path / "train.py"
    file.write_text("import os\nx = 1\nx = 1\n")
    findings = [
        Finding("TPU101", Severity.error, file, line, 0, "It cannot be.", "Do this.")
        for line in (2, 3)
    ]
    entries = code_quality(Report(tuple(findings), (file,)), tmp_path)
    assert json.loads(json.dumps(entries)) == entries
    for entry, line in zip(entries, (2, 3), strict=True):
        assert entry["description"] == "It cannot be. Do this."
        assert entry["check_name"] == "TPU101"
        assert entry["severity"] == "major"
        assert entry["location"] == {"path": "train.py", "lines": {"begin": line}}
    before = [entry["fingerprint"] for entry in entries]
    assert len({*before}) == 2
    file.write_text("import os\nimport sys\nx = 1\nx = 1\n")
    moved = [replace(finding, line=finding.line + 1) for finding in findings]
    after = code_quality(Report(tuple(moved), (file,)), tmp_path)
    assert [entry["fingerprint"] for entry in after] == before


def test_paths_are_relative_to_ci_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    for name in ("GITHUB_WORKSPACE", "CI_PROJECT_DIR"):
        assert base_folder({name: str(tmp_path)}) == tmp_path
    assert base_folder({"CI_PROJECT_DIR": str(tmp_path / "other")}) == tmp_path / "sub"


@pytest.mark.parametrize(
    ("foreign", "signed_out"),
    [
        (api.Unauthenticated("expired"), True),
        (api.Unauthorized("expired"), True),
        (RefreshError("unable to retrieve subject token"), True),
        (api.Forbidden("no"), False),
        (api.PermissionDenied("no"), False),
        (api.ServiceUnavailable("later"), False),
    ],
)
def test_expired_credentials_differ_from_missing_permission(
    foreign: Exception, signed_out: bool
) -> None:
    def own_error() -> TpuctlError:
        try:
            raise convert(foreign, "nodes") from foreign
        except TpuctlError as error:
            return error

    assert is_signed_out(own_error()) is signed_out
    outer = TpuctlError("Lost", "the machine")
    outer.__cause__ = own_error()
    assert is_signed_out(outer) is signed_out
    assert not is_signed_out(TpuctlError("Lost", "the machine"))


def test_ci_credentials_file_is_never_uploaded(tmp_path: Path) -> None:
    below = tmp_path / "deep" / "er"
    below.mkdir(parents=True)
    for folder in (tmp_path, below):
        (folder / "gha-creds-0a1b2c3d.json").write_text("{}")
        (folder / "gha-creds.json").write_text("{}")
    names = {entry.path.name for entry in FileRules(tmp_path, ["*"]).select().entries}
    assert "gha-creds.json" in names
    assert "gha-creds-0a1b2c3d.json" not in names
