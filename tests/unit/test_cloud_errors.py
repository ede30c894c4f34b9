"""Google's error texts, as seen in public, are raised as the error that callers can handle."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import pytest
import requests
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.cloud.storage.exceptions import DataCorruption

from tests.support.fake_clock import FakeClock
from tpuctl.cloud.classification import AlreadyExists, classify
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.endpoints import GOOGLE, Endpoint
from tpuctl.cloud.errors import convert, is_foreign
from tpuctl.cloud.operations import compute_operation
from tpuctl.errors import (
    ApiDisabled,
    Conflict,
    Denied,
    NoCapacity,
    NotFound,
    QuotaExceeded,
    TpuctlError,
    Transient,
    Usage,
)
from tpuctl.google_imports import compute_types


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (
            "PERMISSION_DENIED",
            "Cloud TPU API has not been used in project 123456789 before or it is disabled.",
            ApiDisabled,
        ),
        (
            "ALREADY_EXISTS",
            "Resource 'projects/p/locations/z/nodes/n' already exists",
            AlreadyExists,
        ),
        ("NOT_FOUND", "The resource 'projects/P/global/networks/default' was not found", NotFound),
        ("UNKNOWN", "ZONE_RESOURCE_POOL_EXHAUSTED: no resources", NoCapacity),
        ("UNAVAILABLE", "The service is currently unavailable.", Transient),
    ],
)
def test_texts_are_converted(status: str, text: str, expected: type[TpuctlError]) -> None:
    error = classify(status, text, subject="node/bert-tpu")
    assert type(error) is expected
    assert "node/bert-tpu" in str(error)


def test_exit_codes_match_documentation() -> None:
    assert (NoCapacity.exit_code, QuotaExceeded.exit_code, Denied.exit_code) == (75, 76, 77)
    assert (Transient.exit_code, Usage.exit_code) == (69, 2)


@pytest.mark.parametrize(
    ("foreign", "expected"),
    [
        (api.NotFound("no bucket"), NotFound),
        (api.Conflict("already own it"), AlreadyExists),
        (api.PreconditionFailed("conditionNotMet"), Conflict),
        (api.Forbidden("no access"), Denied),
        (api.ServiceUnavailable("later"), Transient),
        (api.TooManyRequests("slow down"), Transient),
        (api.Unauthorized("who"), Denied),
        (requests.ConnectionError("refused"), Transient),
        (auth.TransportError("no route"), Transient),
        (auth.RefreshError("expired"), Denied),
        (auth.DefaultCredentialsError("none"), Denied),
        (api.RetryError("gave up", cause=Exception()), Transient),
        (DataCorruption(None, "checksums differ"), Transient),
        (grpc.RpcError("bare"), TpuctlError),
    ],
)
def test_exceptions_of_libraries_are_converted(
    foreign: Exception, expected: type[TpuctlError]
) -> None:
    assert is_foreign(foreign)
    assert isinstance(convert(foreign, "bucket/b"), expected)


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        ("INVALID_ARGUMENT", "resourceNotReady", Transient),
        ("PERMISSION_DENIED", "quotaExceeded", QuotaExceeded),
        ("UNKNOWN", "QUOTA_EXCEEDED", QuotaExceeded),
        ("PERMISSION_DENIED", "SERVICE_DISABLED", ApiDisabled),
    ],
)
def test_reasons_take_precedence_over_status(
    status: str, reason: str, expected: type[TpuctlError]
) -> None:
    assert type(classify(status, "the text", subject="x", reasons=[reason])) is expected


def test_credentials_in_errors_are_hidden() -> None:
    """For instance of a program that prints a token (executable-sourced credentials)."""
    error = convert(auth.RefreshError("bad response: ya29.a0AfB_byC1234567890 {}"), "your token")
    assert "bad response: [secret]" in str(error)


def test_own_exceptions_are_not_converted_and_cancellation_by_the_server_is_transient() -> None:
    assert not is_foreign(KeyError("mistake"))
    assert not is_foreign(KeyboardInterrupt())
    error = api.Cancelled("CANCELLED", errors=(), details=(), response=None)
    error.grpc_status_code = grpc.StatusCode.CANCELLED
    assert isinstance(convert(error, "the list of every tpu"), Transient)


def test_missing_credentials_have_hint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    with pytest.raises(Denied, match="Not signed in") as caught:
        Cloud(GOOGLE, "my-project").client("tpu")
    assert "gcloud auth application-default login" in caught.value.diagnostics[0].hint


async def test_refused_connection_is_retried_only_by_us() -> None:
    """The clients' own retries would add two to ten minutes to each of tpuctl's."""
    clock = FakeClock()
    cloud = Cloud(Endpoint("local", "http://127.0.0.1:9", "token"), "my-project", clock)
    bucket = cloud.client("storage").bucket("b")
    with pytest.raises(Transient):
        await cloud.call("bucket/b", bucket.get_iam_policy)
    assert clock.slept == [0.5, 1.0, 2.0, 4.0]


@pytest.mark.parametrize("verb", ["delete", "patch"])
async def test_concurrent_deletion_counts_as_deleted(verb: str) -> None:
    types = compute_types()
    problem = {"code": "RESOURCE_NOT_FOUND", "message": "The resource was not found"}
    ended = types.Operation(
        status=types.Operation.Status.DONE, operation_type=verb, error={"errors": [problem]}
    )
    cloud = Cloud(GOOGLE, "my-project")  # not queried: the operation has ended
    if verb == "delete":
        await compute_operation(cloud, ended, subject="firewall/x", seconds=1)
    else:
        with pytest.raises(TpuctlError):
            await compute_operation(cloud, ended, subject="firewall/x", seconds=1)


def test_html_error_page_is_reduced_to_title() -> None:
    """As in world-federation-of-advertisers/cross-media-measurement#1644."""
    page = (
        "<!DOCTYPE html>\n<html lang=en>\n  <meta charset=utf-8>\n"
        "  <title>Error 502 (Server Error)!!1</title>\n  <style>p{margin:0}</style>\n"
        "  <p>The server encountered a temporary error.\n"
    )
    error = api.BadGateway(f"GET https://storage.googleapis.com/storage/v1/b: {page}")
    converted = convert(error, "the list of buckets")
    assert isinstance(converted, Transient)
    detail = str(converted.diagnostics[0].detail)
    assert detail.splitlines()[0] == "the list of buckets: Error 502 (Server Error)"


COMPUTE = "https://compute.googleapis.com/compute/v1/projects/my-project/zones/us-central1-b"
PATH = COMPUTE[30:]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            f"POST {COMPUTE}/instances?requestId=1b2c-3d&prettyPrint=false: Invalid value for "
            "field 'resource.machineType': 'x'.",
            "Invalid value for field 'resource.machineType': 'x'.",
        ),
        (f"GET {COMPUTE}/disks/d?alt=json: unknown error", f"{PATH}/disks/d: unknown error"),
        (f"HEAD {COMPUTE}/disks/d: ", f"{PATH}/disks/d"),
        ("Quota exceeded: see https://x.example/a?b=c", None),
    ],
)
def test_request_url_is_removed_from_message(message: str, expected: str | None) -> None:
    """The prefix that google.api_core adds to Google's message."""
    (diagnostic,) = convert(api.BadRequest(message), "controller/bert").diagnostics
    line = f"controller/bert: {message if expected is None else expected}"
    assert diagnostic.detail.splitlines()[0] == line


def test_request_url_names_the_project_and_its_request_id_is_removed() -> None:
    refused = api.Forbidden(f"POST {COMPUTE}/instances?requestId=1: Permission denied")
    assert "my-project" in convert(refused, "controller/bert").diagnostics[0].hint
    lost = requests.ConnectionError(
        "HTTPSConnectionPool(host='compute.googleapis.com', port=443): Max retries exceeded with "
        "url: /compute/v1/projects/my-project/zones/z/instances?requestId=1b2c (Caused by x)"
    )
    detail = convert(lost, "controller/bert").diagnostics[0].detail
    assert "zones/z/instances (Caused by x)" in detail


def test_message_of_an_upload_is_shown_without_its_json() -> None:
    """google-cloud-storage passes on the body of the response to an upload as it is."""
    message = "Object 'b/o' is subject to bucket's retention policy and cannot be overwritten"
    body = json.dumps({"error": {"code": 403, "message": message, "errors": []}}, indent=2)
    url = "POST https://storage.googleapis.com/upload/storage/v1/b/b/o?uploadType=multipart"
    text = f"{url}: {body}: ('Request failed with status code', 403, 'Expected one of', 200)"
    error = convert(api.Forbidden(text), "gs://b/o")
    assert isinstance(error, Denied)
    assert error.diagnostics[0].detail.splitlines()[0] == f"gs://b/o: {message}"
