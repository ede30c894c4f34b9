"""Google's error texts, quoted as seen in public, and the scope of each.

The expected scope was decided by reading them: where would the same request have succeeded?
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from google.api_core import exceptions as api
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from tpuctl import errors
from tpuctl.cloud import classification
from tpuctl.cloud.classification import (
    classify,
)
from tpuctl.cloud.errors import convert, from_status
from tpuctl.errors import (
    Denied,
    NoCapacity,
    OperationFailed,
    QuotaExceeded,
    Scope,
    TpuctlError,
    Transient,
)
from tpuctl.model.troubleshooting.known_errors import table

FILE = Path(__file__).parent / "google_texts.toml"
SEEN = [
    (status, text, getattr(classification, error, None) or getattr(errors, error), Scope[scope])
    for error, scopes in tomllib.loads(FILE.read_text("utf-8")).items()
    for scope, rows in scopes.items()
    for status, text in rows
]


@pytest.mark.parametrize(("status", "text", "error", "scope"), SEEN)
def test_publicly_seen_texts_are_classified(
    status: str, text: str, error: type[TpuctlError], scope: Scope
) -> None:
    for has_ended in (False, True):  # in a response, and in a failed operation
        converted = classify(status, text, subject="node/bert-tpu", has_ended=has_ended)
        assert (type(converted), converted.scope) == (error, scope)
        assert "node/bert-tpu" in str(converted)
        assert "EID" not in str(converted)


@pytest.mark.parametrize(
    ("reason", "error", "scope"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED", NoCapacity, Scope.ZONE),
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", NoCapacity, Scope.ZONE),
        ("insufficientCapacity", NoCapacity, Scope.ZONE),
        ("UNSUPPORTED_OPERATION", NoCapacity, Scope.ZONE),  # preempted during creation
        ("LOCATION_POLICY_VIOLATED", Denied, Scope.ZONE),
        ("UREQ_PROJECT_BILLING_NOT_FOUND", Denied, Scope.PROJECT),
        ("QUOTA_EXCEEDED", QuotaExceeded, Scope.PROJECT),  # without a location
    ],
)
def test_reasons_are_classified(reason: str, error: type[TpuctlError], scope: Scope) -> None:
    converted = classify("UNKNOWN", "words never seen", subject="x", reasons=[reason])
    assert (type(converted), converted.scope) == (error, scope)


@pytest.mark.parametrize(
    "status",
    ["INVALID_ARGUMENT", "FAILED_PRECONDITION", "NOT_FOUND", "INTERNAL", "UNAVAILABLE", "ODD"],
)
def test_unknown_text_is_fatal(status: str) -> None:
    """No other zone is tried after an unknown error: that would hide the reason."""
    error = classify(status, "Frobnication declined.", subject="x", has_ended=True)
    assert error.scope is Scope.FATAL
    assert not isinstance(error, Transient)  # the operation is over: repeating it cannot help


def test_exhaustion_of_an_operation_is_no_capacity_and_of_a_request_transient() -> None:
    ended = classify("RESOURCE_EXHAUSTED", "Frobnication declined.", subject="x", has_ended=True)
    assert (type(ended), ended.scope) == (NoCapacity, Scope.ZONE)
    rate_limit = (
        "Quota exceeded for quota metric 'Default requests' and limit 'Default requests per "
        "minute' of service 'tpu.googleapis.com' for consumer 'project_number:1'."
    )
    for text in ("Frobnication declined.", rate_limit):
        assert isinstance(classify("RESOURCE_EXHAUSTED", text, subject="x"), Transient)


def test_details_of_operation_are_read() -> None:
    violation = error_details_pb2.QuotaFailure.Violation(
        subject="project:1", description="Quota 'X' exhausted. Limit 4 in zone us-east5-a"
    )
    packed = any_pb2.Any()
    packed.Pack(error_details_pb2.QuotaFailure(violations=[violation]))
    error = from_status(status_pb2.Status(code=8, message="No.", details=[packed]), "node/x")
    assert (type(error), error.scope) == (QuotaExceeded, Scope.ZONE)
    odd = from_status(status_pb2.Status(code=2, message="No."), "node/x")
    assert type(odd) is OperationFailed


def test_details_of_response_are_read_from_json_and_grpc() -> None:
    reason = "LOCATION_POLICY_VIOLATED"
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason}
    rest = api.Forbidden("no", details=[info])
    rpc = api.PermissionDenied("no", details=[error_details_pb2.ErrorInfo(reason=reason)])
    assert convert(rest, "node/x").scope is convert(rpc, "node/x").scope is Scope.ZONE


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "The resource 'hostkeys/' of type 'Guest Attribute' was not found.",
            "guest-attribute-missing",
        ),
        ('The field "AcceleratorType" cannot be "v3-64".', "not-offered"),
        ("FLEX_START is not supported for v5litepod-8 in us-west4-a", "not-offered"),
        (
            "Invalid value for field 'resource.sourceRanges[0]': '1.2.3.4/33'.",
            "source-range-malformed",
        ),
        ("Object 'b/o' is under active Temporary hold and cannot be deleted", "object-hold"),
    ],
)
def test_pasted_text_has_the_cause_of_the_answer(text: str, name: str) -> None:
    known_error = table().match_response("UNKNOWN", text)
    assert known_error is not None
    assert known_error.name == name
