"""Validation of calls from gRPC, batches and server transcripts."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.cloud import tpu_v2
from google.longrunning import operations_pb2

from tests.support.call_validation import Call, validate_call
from tests.support.discovery_documents import DOCUMENTS, document, find
from tests.support.known_deviations import ALLOWANCES, is_allowed
from tests.support.transcripts import TranscriptValidator, calls_of, validate_line
from tests.support.value_validation import Complaint
from tests.support.wire_validation import REST_RULES

L = "projects/local-project/locations/europe-west4-a"
SHOWN = {"name": f"{L}/nodes/n", "acceleratorType": "v3-8", "runtimeVersion": "v2-alpha"}
NODES = "tpu.projects.locations.nodes"

# gRPC.


def rpc(method: str, request: bytes, answer: bytes, status: int = 0) -> list[str]:
    line = {
        "kind": "rpc",
        "method": f"/google.cloud.tpu.v2.Tpu/{method}",
        "body": base64.b64encode(request).decode(),
        "status": status,
        "answer": base64.b64encode(answer).decode(),
    }
    verdicts = list(validate_line(line))
    return [
        f"{verdict.side} {complaint.path}: {complaint.rule}"
        for verdict in verdicts
        for complaint in verdict.complaints
    ]


def test_grpc_messages_are_validated_by_same_documents() -> None:
    started = operations_pb2.Operation(name=f"{L}/operations/o").SerializeToString()
    node = tpu_v2.Node(runtime_version="r", accelerator_type="v3-8")
    request = tpu_v2.CreateNodeRequest(parent=L, node_id="n", node=node)

    def serialized() -> bytes:
        data: bytes = tpu_v2.CreateNodeRequest.serialize(request)
        return data

    assert rpc("CreateNode", serialized(), started) == []
    unknown = serialized() + b"\xf8\x7f\x01"
    assert rpc("CreateNode", unknown, started) == ["request : unknown fields in the request"]
    request.node.runtime_version = ""
    assert rpc("CreateNode", serialized(), started) == ["request runtimeVersion: missing"]
    assert rpc("CreateNode", b"", started) == ["request : no path matches the message"]
    assert rpc("CreateNode", b"", b"", 99) == ["answer : not a gRPC status"]

    get_node = tpu_v2.GetNodeRequest.serialize(tpu_v2.GetNodeRequest(name=f"{L}/nodes/n"))
    assert rpc("GetNode", get_node, tpu_v2.Node.serialize(node)) == []
    node_of_no_state = tpu_v2.Node.serialize(node) + b"\x48\x4d"  # field 9, `state`: 77
    assert rpc("GetNode", get_node, node_of_no_state) == ["answer state: not a valid string"]


# Transcripts.


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture
def transcript_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "calls.jsonl"
    monkeypatch.setenv("TPUCTL_LOCAL_TRANSCRIPT", str(path))
    return path


MakeCloud = Callable[..., Any]


def test_transcript_has_every_call_and_no_token(transcript_file: Path, new_cloud: Any) -> None:
    new_cloud.enable("tpu")
    bucket = "/storage/v1/b?project=local-project"
    upload = f"/t/{new_cloud.token}/upload/storage/v1/b/secret-free/o?uploadType=media&name=o"
    new_cloud.request("POST", bucket, json={"name": "secret-free"})
    new_cloud.request("POST", upload, data=b"the object's content")
    new_cloud.request("GET", f"/t/{new_cloud.token}/storage/v1/b/secret-free/o/o?alt=media")
    new_cloud.request("GET", "/nothing/here", token="wrong-token")
    assert not list(new_cloud.tpu().list_nodes(parent=L))
    text = transcript_file.read_text("utf-8")
    for word in (new_cloud.token, "wrong-token", "the object's content"):
        assert word not in text
    calls_found = [
        (line.get("verb"), line.get("path") or line["method"], line["status"])
        for line in lines(transcript_file)
    ]
    assert calls_found == [
        ("POST", "/storage/v1/b", 200),
        ("POST", "/upload/storage/v1/b/secret-free/o", 200),
        ("GET", "/storage/v1/b/secret-free/o/o", 200),
        ("GET", "/nothing/here", 401),
        (None, "/google.cloud.tpu.v2.Tpu/ListNodes", 0),
    ]
    assert "127.0.0.1" in text and "/t/" not in text  # links in responses have no token


def test_batch_parts_are_separate_calls(transcript_file: Path, new_cloud: Any) -> None:
    client = new_cloud.storage()
    bucket = client.create_bucket("parts")
    bucket.blob("there").upload_from_string(b"x")
    blobs = [bucket.blob(name) for name in ("there", "absent")]
    with client.batch(raise_exception=False):
        for blob in blobs:
            blob.reload()
    batches = [line for line in lines(transcript_file) if line["path"].startswith("/batch/")]
    calls = [call for line in batches for call in calls_of(line)]
    assert [(call.path, call.status) for call in calls] == [
        ("/storage/v1/b/parts/o/there", 200),
        ("/storage/v1/b/parts/o/absent", 404),
    ]
    assert [verdict.complaints for call in calls for verdict in validate_call(call)] == [[]] * 4
    content = json.loads(calls[0].answer or "")
    wrong = Call("GET", calls[0].path, answer=json.dumps({**content, "size": 1}))
    assert [
        str(complaint) for verdict in validate_call(wrong) for complaint in verdict.complaints
    ] == ["size: not a valid string (1)"]


def test_transcript_reader_continues_at_offset(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    validator = TranscriptValidator(path)
    assert validator.complaints() == []
    line = {
        "kind": "rest",
        "verb": "GET",
        "override": "",
        "path": f"/v2/{L}/nodes/n",
        "query": "",
        "type": "",
    }
    line |= {"body": "", "status": 200, "answer_type": "application/json"}
    right = json.dumps({**line, "answer": json.dumps(SHOWN)}) + "\n"
    wrong = json.dumps({**line, "answer": json.dumps({**SHOWN, "color": 1})}) + "\n"
    path.write_text(right + wrong[:40], "utf-8")
    assert validator.complaints() == []
    path.write_text(right + wrong, "utf-8")
    assert validator.complaints() == [f"{NODES}.get, answer: color: unknown field of Node (1)"]
    assert validator.complaints() == []
    with path.open("a", encoding="utf-8") as file:
        file.write(wrong[:40] + wrong.replace("color", "shape"))  # killed while writing
    assert validator.complaints() == [f"{NODES}.get, answer: shape: unknown field of Node (1)"]
    assert (validator.tally.calls, validator.tally.methods) == (3, {f"{NODES}.get"})


# The documents and the known deviations.


def test_every_document_is_available() -> None:
    for name in DOCUMENTS:
        assert document(name).methods, name


@pytest.mark.parametrize("service", REST_RULES)
def test_rest_rules_match_documents(service: str) -> None:
    """For APIs whose client has no paths: each served path is a method of a document."""
    for attribute, options in REST_RULES[service].items():
        for option in options:
            path = re.sub(r"\{[\w.]+=([^}]*)\}", r"\1", option["uri"]).replace("*", "x1")
            methods = find(option["method"].upper(), path)
            assert methods, f"{attribute}: {option}"
            has_body = "request" in methods[0][0].text
            assert bool(option.get("body")) == has_body, f"{attribute}: {option}"


def test_allowances_have_reasons_and_are_specific() -> None:
    assert all(len(allowance.because) > 30 for allowance in ALLOWANCES)
    assert not is_allowed(f"{NODES}.get", "answer", Complaint("state", "not a valid string"))
    assert is_allowed(
        "storage.objects.list", "request", Complaint("?versions", "not a valid boolean")
    )
    assert not is_allowed(
        "storage.objects.list", "answer", Complaint("?versions", "not a valid boolean")
    )
