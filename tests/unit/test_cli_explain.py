"""`tpuctl explain` of a pasted error message: no cloud is queried."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest
from google.rpc import error_details_pb2, status_pb2

from tpuctl.cli.main import run
from tpuctl.cloud.classification import classify
from tpuctl.cloud.errors import from_status
from tpuctl.model.troubleshooting.known_errors import extract_facts

STOCKOUT = 'There is no more capacity in the zone "europe-west4-a"; you can try in another zone'


pytestmark = pytest.mark.usefixtures("empty_folder")


def pasted(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


@pytest.mark.parametrize("arguments", [["explain", "-"], ["explain", "--error", "-"]])
def test_explain_finds_relevant_line_in_stdin(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    log = f"step 1 \xff\nERROR: (gcloud.x) {STOCKOUT}\nTraceback: see above\n"
    pasted(monkeypatch, log.encode("latin-1"))
    assert run([*arguments, "--json"]) == 0
    explanation = json.loads(capsys.readouterr().out)["data"]
    assert (explanation["name"], explanation["line"]) == (
        "no-capacity",
        f"ERROR: (gcloud.x) {STOCKOUT}",
    )


def test_empty_stdin_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    pasted(monkeypatch, b"")
    assert run(["explain", "-"]) == 2
    assert "no error message to explain" in capsys.readouterr().err


def test_unknown_error_is_shown_in_full_with_next_step() -> None:
    status = status_pb2.Status(code=2, message="Frobnication declined. [EID: 0x1f]")
    request = error_details_pb2.RequestInfo(request_id="r-4711")
    status.details.add().Pack(request)
    diagnostic = from_status(status, "node/bert-tpu", {"project": "my-project"}).diagnostics[0]
    words = ("node/bert-tpu", "Frobnication declined. [EID: 0x1f]", "(request r-4711)")
    assert all(word in diagnostic.detail for word in words)
    assert "--verbose" in diagnostic.hint
    assert "\n    tpuctl doctor\n" in diagnostic.hint


def test_missing_permission_suggests_role() -> None:
    text = "Permission 'tpu.nodes.create' denied on 'projects/my-project/locations/x'"
    error = classify("PERMISSION_DENIED", text, subject="node/x", facts={"project": "my-project"})
    assert error.diagnostics[0].hint.endswith(
        "\n    gcloud projects add-iam-policy-binding my-project --member=user:YOU "
        "--role=roles/tpu.admin"
    )


@pytest.mark.parametrize(
    ("text", "project"),
    [
        ("requesting https://x.googleapis.com/v1/projects/my-project:setIamPolicy", "my-project"),
        ("projects/my-project/locations/us-central2-b", "my-project"),
        ("projects/example.com:my-project/zones/us-central2-b", "example.com:my-project"),
    ],
)
def test_project_is_extracted_from_message(text: str, project: str) -> None:
    assert extract_facts(text)["project"] == project
