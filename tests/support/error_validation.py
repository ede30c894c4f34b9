"""Validates error responses in Google's two forms.

Platform APIs: https://cloud.google.com/apis/design/errors (AIP-193), with the details of
google/rpc/error_details.proto. Legacy APIs: a list of `errors`, see
https://cloud.google.com/storage/docs/json_api/v1/status-codes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import json_format
from google.rpc import code_pb2, error_details_pb2, status_pb2

from tests.support.value_validation import Complaint

# HTTP status of each google.rpc.Code, from google/rpc/code.proto.
_HTTP: Mapping[str, int] = {
    "CANCELLED": 499,
    "UNKNOWN": 500,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": 504,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "FAILED_PRECONDITION": 400,
    "ABORTED": 409,
    "OUT_OF_RANGE": 400,
    "UNIMPLEMENTED": 501,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DATA_LOSS": 500,
    "UNAUTHENTICATED": 401,
}
_ENTRY = {"message", "domain", "reason", "location", "locationType", "extendedHelp", "debugInfo"}
assert error_details_pb2 is not None  # registers the detail messages


def check_error(status: int, text: str, family: str) -> Iterator[Complaint]:
    """Complaints about an error body; `family` is "platform" or "legacy".

    Errors from Google's front end are HTML pages, as in
    world-federation-of-advertisers/cross-media-measurement#1644.
    """
    if status in (408, 502) and f"<title>Error {status} (" in text:
        return
    try:
        value = json.loads(text)
    except ValueError:
        yield Complaint("", "error response is not JSON", text[:120])
        return
    if not isinstance(value, dict) or list(value) != ["error"]:
        yield Complaint("", "not a single `error` object", text[:120])
        return
    error = value["error"]
    if not isinstance(error, dict):
        yield Complaint("error", "not a valid object", repr(error))
        return
    yield from _error(status, error, family)
    for entry in error.get("errors", ()):
        for key in ("message", "domain", "reason"):
            if not isinstance(entry.get(key), str) or not entry[key]:
                yield Complaint(f"error.errors[].{key}", "missing")
        for key in entry.keys() - _ENTRY:
            yield Complaint(f"error.errors[].{key}", "unknown field", repr(entry[key]))
    for detail in error.get("details", ()):
        yield from _detail(detail)


def _error(status: int, error: Mapping[str, Any], family: str) -> Iterator[Complaint]:
    for key in error.keys() - {"code", "message", "status", "details", "errors"}:
        yield Complaint(f"error.{key}", "unknown field of an error", repr(error[key]))
    if error.get("code") != status:
        yield Complaint("error.code", "not the HTTP status", repr(error.get("code")))
    if not isinstance(error.get("message"), str) or not error["message"]:
        yield Complaint("error.message", "missing")
    if family == "platform" and "status" not in error:
        yield Complaint("error.status", "missing")
    # Faults may use any status; those that are not Google's have no name.
    if "status" in error and status in _HTTP.values() and _HTTP.get(error["status"]) != status:
        yield Complaint("error.status", "inconsistent with the HTTP status", repr(error["status"]))
    if family == "legacy" and not error.get("errors"):
        yield Complaint("error.errors", "missing")


def _detail(detail: Any) -> Iterator[Complaint]:
    try:
        json_format.ParseDict(detail, status_pb2.Status().details.add())
    except (json_format.ParseError, TypeError) as error:
        yield Complaint("error.details[]", "unknown message type", str(error)[:200])


def check_status(number: int) -> Iterator[Complaint]:
    """Complaints about the status of a gRPC call."""
    if number not in code_pb2.Code.values():
        yield Complaint("", "not a gRPC status", str(number))
