"""The validator of calls against Google's discovery documents reports what is wrong."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from tests.support.call_validation import Call, validate_call
from tests.support.locations import PROJECT_NAME, US_ZONE

L = "projects/local-project/locations/europe-west4-a"
NODE = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"}
# A node as shown in the API's reference.
SHOWN = {
    "name": f"{L}/nodes/n",
    **NODE,
    "state": "READY",
    "networkEndpoints": [{"ipAddress": "10.0.0.2", "port": 8470}],
    "createTime": "2024-05-01T10:00:00.123456789Z",
    "networkConfig": {"canIpForward": False},
    "id": "8871233232",
    "labels": {"a": "b"},
}
OPERATION = {
    "name": f"{L}/operations/operation-1",
    "done": True,
    "metadata": {"@type": "type.googleapis.com/google.cloud.common.OperationMetadata"},
    "response": {"@type": "type.googleapis.com/google.cloud.tpu.v2.Node", **SHOWN},
}
COMPUTE_ZONE = f"/compute/v1/{PROJECT_NAME}/zones/{US_ZONE}"
INSTANCE = {"kind": "compute#instance", "name": "i", "id": "12", "status": "RUNNING"}
DISK = {"kind": "compute#attachedDisk", "initializeParams": {}}
OBJECT = {"kind": "storage#object", "name": "o", "size": "3", "generation": "5"}
Json = Any


def complaints_of(call: Call) -> list[str]:
    return [
        f"{each.side} {complaint.path}: {complaint.rule}"
        for each in validate_call(call)
        for complaint in each.complaints
    ]


def answered(verb: str, path: str, answer: Json, *, status: int = 200, query: str = "") -> Call:
    return Call(verb, path, query, status=status, answer=json.dumps(answer))


def requested(
    verb: str, path: str, body: Json, *, query: str = "", answer: Json = OPERATION
) -> Call:
    return Call(verb, path, query, json.dumps(body), answer=json.dumps(answer))


def changed(value: Json, path: str, new: Json) -> Json:
    """A copy with one value changed; `...` deletes it."""
    copied = copy.deepcopy(value)
    *outer, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    parent = copied
    for part in outer:
        parent = parent[part]
    if new is ...:
        del parent[last]
    else:
        parent[last] = new
    return copied


def refusal(**changes: Json) -> Json:
    error = {"code": 404, "message": "Not there.", "status": "NOT_FOUND", **changes}
    return {"error": {key: value for key, value in error.items() if value is not ...}}


RIGHT = [
    answered("GET", f"/v2/{L}/nodes/n", SHOWN),
    answered("GET", f"/v2/{L}/nodes/n", {**SHOWN, "state": 2}, query="$alt=json;enum-encoding=int"),
    answered("GET", f"/v2/{L}/nodes/n", {"name": "n"}, query="fields=name"),
    requested("POST", f"/v2/{L}/nodes", NODE, query="nodeId=n"),
    requested("PATCH", f"/v2/{L}/nodes/n", {"labels": {"a": "b"}}, query="updateMask=labels"),
    answered("GET", f"/v2/{L}/operations/operation-1", OPERATION),
    answered("GET", f"/v2/{L}/nodes/n", refusal(), status=404),
    answered("GET", f"{COMPUTE_ZONE}/instances/i", INSTANCE),
    answered("GET", f"{COMPUTE_ZONE.removeprefix('/compute/v1')}/instances/i", INSTANCE),
    answered("GET", "/storage/v1/b/bucket/o/a%2Fb", OBJECT),
    answered("GET", "/b/bucket/o/o", OBJECT),
    Call("GET", "/storage/v1/b/bucket/o/o", "alt=media", answer="its bytes", media="text/plain"),
    Call("DELETE", "/storage/v1/b/bucket/o/o", status=204, answer=""),
    Call("PUT", "/upload/storage/v1/b/bucket/o", "upload_id=x", status=308, answer=""),
    Call("GET", "/nothing/here", status=404, answer="<!DOCTYPE html>", media="text/html"),
]


@pytest.mark.parametrize("call", RIGHT, ids=str)
def test_valid_calls_have_no_complaints(call: Call) -> None:
    assert complaints_of(call) == []


G = f"/v2/{L}/nodes/n"
WRONG: list[tuple[Call, str]] = [
    # Answers.
    (answered("GET", G, changed(SHOWN, "color", "red")), "answer color: unknown field of Node"),
    (
        answered("GET", G, changed(SHOWN, "networkConfig.color", 1)),
        "answer networkConfig.color: unknown field of NetworkConfig",
    ),
    (
        answered("GET", G, changed(SHOWN, "state", "DONE")),
        "answer state: unknown enum value",
    ),
    (answered("GET", G, changed(SHOWN, "state", 2)), "answer state: not a valid string"),
    (
        answered("GET", G, {**SHOWN, "state": 77}, query="$alt=json;enum-encoding=int"),
        "answer state: unknown enum value",
    ),
    (answered("GET", G, changed(SHOWN, "id", 8871233232)), "answer id: not a valid string"),
    (answered("GET", G, changed(SHOWN, "id", "n")), "answer id: not a valid int64"),
    (answered("GET", G, changed(SHOWN, "id", str(2**63))), "answer id: not a valid int64"),
    (
        answered("GET", G, changed(SHOWN, "createTime", "2024-05-01")),
        "answer createTime: not a valid timestamp",
    ),
    (
        answered("GET", G, changed(SHOWN, "createTime", "2024-13-01T10:00:00Z")),
        "answer createTime: not a valid timestamp",
    ),
    (
        answered("GET", G, changed(SHOWN, "createTime", None)),
        "answer createTime: null in a response",
    ),
    (answered("GET", G, changed(SHOWN, "labels", ["a"])), "answer labels: not a valid object"),
    (answered("GET", G, changed(SHOWN, "labels.a", 1)), "answer labels{}: not a valid string"),
    (
        answered("GET", G, changed(SHOWN, "networkEndpoints", {})),
        "answer networkEndpoints: not a valid array",
    ),
    (
        answered("GET", G, changed(SHOWN, "networkEndpoints.0.port", "8470")),
        "answer networkEndpoints[].port: not a valid integer",
    ),
    (
        answered("GET", G, changed(SHOWN, "networkEndpoints.0.port", 2**31)),
        "answer networkEndpoints[].port: not a valid int32",
    ),
    (
        answered("GET", G, changed(SHOWN, "networkConfig.canIpForward", "false")),
        "answer networkConfig.canIpForward: not a valid boolean",
    ),
    (answered("GET", G, changed(SHOWN, "runtimeVersion", ...)), "answer runtimeVersion: missing"),
    (Call("GET", G, answer="{"), "answer : not valid JSON"),
    (
        Call("GET", G, answer=json.dumps(SHOWN), media="text/html"),
        "answer : Content-Type is not JSON",
    ),
    (answered("GET", f"/v2/{L}/nodes", [SHOWN]), "answer : not a valid object"),
    (Call("HEAD", G, answer="{}"), "answer : body in the response to HEAD"),
    (
        Call("DELETE", "/storage/v1/b/b/o/o", answer="{}"),
        "answer : unexpected response body",
    ),
    # Operations.
    (
        answered("DELETE", G, changed(OPERATION, "done", False)),
        "answer done: result inconsistent with it",
    ),
    (
        answered("DELETE", G, changed(OPERATION, "response", ...)),
        "answer done: result inconsistent with it",
    ),
    (answered("DELETE", G, changed(OPERATION, "name", ...)), "answer name: missing"),
    (
        answered("DELETE", G, changed(OPERATION, "metadata.@type", ...)),
        "answer metadata: missing @type",
    ),
    (
        answered(
            "DELETE", G, changed(OPERATION, "metadata.@type", "type.googleapis.com/x.Nothing")
        ),
        "answer metadata: unknown @type",
    ),
    (
        answered("DELETE", G, changed(OPERATION, "metadata.verbs", "delete")),
        "answer metadata.verbs: unknown field of OperationMetadata",
    ),
    (
        answered("DELETE", G, changed(OPERATION, "response.state", "DONE")),
        "answer response.state: unknown enum value",
    ),
    # The legacy APIs.
    (
        answered("GET", f"{COMPUTE_ZONE}/instances/i", changed(INSTANCE, "kind", ...)),
        "answer kind: missing",
    ),
    (
        answered("GET", f"{COMPUTE_ZONE}/instances/i", changed(INSTANCE, "kind", "compute#disk")),
        "answer kind: not compute#instance",
    ),
    (
        answered("GET", f"{COMPUTE_ZONE}/instances/i", changed(INSTANCE, "name", "No_Name")),
        "answer name: does not match its pattern",
    ),
    (
        answered("GET", f"{COMPUTE_ZONE}/instances/i", changed(INSTANCE, "fingerprint", "-?-")),
        "answer fingerprint: not valid base64",
    ),
    (
        answered("GET", f"{COMPUTE_ZONE}/instances/i", {**INSTANCE, "disks": [DISK]}),
        "answer disks[].initializeParams: input-only field in a response",
    ),
    (
        answered("GET", "/b/b/o/o", changed(OBJECT, "generation", 5)),
        "answer generation: not a valid string",
    ),
    # Errors.
    (answered("GET", G, refusal(code=400), status=404), "answer error.code: not the HTTP status"),
    (answered("GET", G, refusal(message=...), status=404), "answer error.message: missing"),
    (answered("GET", G, refusal(status=...), status=404), "answer error.status: missing"),
    (
        answered("GET", G, refusal(status="INTERNAL"), status=404),
        "answer error.status: inconsistent with the HTTP status",
    ),
    (answered("GET", G, refusal(why=1), status=404), "answer error.why: unknown field of an error"),
    (
        answered("GET", G, refusal(details=[{"@type": "x", "reason": "y"}]), status=404),
        "answer error.details[]: unknown message type",
    ),
    (
        answered("GET", G, {"errors": []}, status=404),
        "answer : not a single `error` object",
    ),
    (Call("GET", G, status=404, answer="no"), "answer : error response is not JSON"),
    (answered("GET", "/b/b/o/o", refusal(), status=404), "answer error.errors: missing"),
    (
        answered("GET", "/b/b/o/o", refusal(errors=[{"message": "m", "domain": "d"}]), status=404),
        "answer error.errors[].reason: missing",
    ),
    # Requests.
    (
        requested("POST", f"/v2/{L}/nodes", {**NODE, "color": 1}, query="nodeId=n"),
        "request color: unknown field of Node",
    ),
    (
        requested("POST", f"/v2/{L}/nodes", {"acceleratorType": "v3-8"}, query="nodeId=n"),
        "request runtimeVersion: missing",
    ),
    (requested("POST", f"/v2/{L}/nodes", NODE, query="node=n"), "request ?node: unknown parameter"),
    (
        requested("POST", f"/v2/{L}/nodes", NODE, query="nodeId=n&nodeId=m"),
        "request ?nodeId: repeated",
    ),
    (
        answered("GET", f"/v2/{L}/nodes", {}, query="pageSize=many"),
        "request ?pageSize: not a valid integer",
    ),
    (
        requested("PATCH", G, NODE, query="updateMask=a;b"),
        "request ?updateMask: not a valid field mask",
    ),
    (
        requested("POST", f"{COMPUTE_ZONE}/instances", {}, answer={"kind": "compute#operation"}),
        "request name: missing",
    ),
    (
        answered("GET", f"{COMPUTE_ZONE.replace('-b', '_b')}/instances/i", INSTANCE),
        "request /zone: does not match its pattern",
    ),
    (
        answered("GET", "/storage/v1/b", {"kind": "storage#buckets"}),
        "request ?project: missing",
    ),
    (
        answered("GET", "/b/b/o", {"kind": "storage#objects"}, query="projection=half"),
        "request ?projection: unknown enum value",
    ),
    (
        requested("GET", G, {"name": "n"}, answer=SHOWN),
        "request : unexpected body",
    ),
    (answered("GET", f"/v2/{L}/sheep", {}), "request : no method has this path"),
    (answered("GET", "/v2/sheep", {}), "request : no method has this path"),
]


@pytest.mark.parametrize(("call", "complaint"), WRONG, ids=[each[1] for each in WRONG])
def test_invalid_calls_are_reported(call: Call, complaint: str) -> None:
    assert complaints_of(call) == [complaint]


def test_rejected_request_may_be_invalid() -> None:
    wrong = Call("POST", f"/v2/{L}/nodes", "", '{"color": 1}', 400)
    right = json.dumps(refusal(code=400, status="INVALID_ARGUMENT"))
    assert complaints_of(Call(wrong.verb, wrong.path, "", wrong.body, 400, right)) == []
