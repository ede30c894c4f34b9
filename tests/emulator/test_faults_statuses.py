"""Errors of any status, as raised by Google's official clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import compute_v1

from tests.support.locations import PARENT, PROJECT
from tpuctl.emulator.state.errors import CODES

CLASSES: dict[int, type[exceptions.GoogleAPICallError]] = {
    400: exceptions.BadRequest,
    403: exceptions.Forbidden,
    404: exceptions.NotFound,
    408: exceptions.GoogleAPICallError,
    409: exceptions.Conflict,
    412: exceptions.PreconditionFailed,
    429: exceptions.TooManyRequests,
    500: exceptions.InternalServerError,
    502: exceptions.BadGateway,
    503: exceptions.ServiceUnavailable,
    504: exceptions.GatewayTimeout,
}
PAGES = (408, 502)  # answered by Google's front end


def asks(cloud: Any) -> dict[str, tuple[str, Callable[[], Any]]]:
    """A method of each API, and a call of it without retries."""
    tpu, storage = cloud.tpu("rest"), cloud.storage()
    networks = cloud.client(compute_v1.NetworksClient)
    blob = storage.bucket("a-bucket").blob("b")
    return {
        "tpu": (
            "google.cloud.tpu.v2.Tpu/ListNodes",
            lambda: list(tpu.list_nodes(parent=PARENT, timeout=60, retry=None)),
        ),
        "compute": (
            "google.cloud.compute.v1.Networks/List",
            lambda: list(networks.list(project=PROJECT, timeout=60, retry=None)),
        ),
        "json": (
            "storage.buckets.list",
            lambda: list(storage.list_buckets(timeout=60, retry=None)),
        ),
        "media": (
            "storage.objects.insert",
            lambda: blob.upload_from_string(b"data", timeout=60, retry=None),
        ),
    }


@pytest.mark.parametrize("status", list(CLASSES))
def test_every_http_status_in_the_format_of_its_api(cloud: Any, status: int) -> None:
    for api, (method, call) in asks(cloud).items():
        fault = cloud.add_fault("error", method=method, http=status)
        with pytest.raises(CLASSES[status]) as caught:
            call()
        assert caught.value.code == status, api
        assert cloud.used(fault) == 1
        response = caught.value.response
        if status in PAGES:
            assert response.headers["Content-Type"].startswith("text/html"), api
            assert f"<title>Error {status} (" in response.text
            continue
        error = response.json()["error"]
        assert error["code"] == status
        assert error["message"]
        if api == "tpu":
            assert CODES[error["status"]][1] == {412: 400, 502: 503}.get(status, status)
        else:
            assert error["errors"][0]["reason"]


@pytest.mark.parametrize("code", list(CODES))
def test_every_code_over_grpc(cloud: Any, code: str) -> None:
    client = cloud.tpu("grpc")
    cloud.add_fault("error", method="ListNodes", code=code)
    with pytest.raises(exceptions.GoogleAPICallError) as caught:
        client.list_nodes(parent=PARENT, timeout=60, retry=None)
    assert caught.value.grpc_status_code.name == code
    assert caught.value.message


@pytest.mark.parametrize(
    ("status", "code"),
    [(408, "DEADLINE_EXCEEDED"), (429, "RESOURCE_EXHAUSTED"), (502, "UNAVAILABLE")],
)
def test_an_http_status_over_grpc(cloud: Any, status: int, code: str) -> None:
    client = cloud.tpu("grpc")
    cloud.add_fault("error", method="ListNodes", http=status)
    with pytest.raises(exceptions.GoogleAPICallError) as caught:
        client.list_nodes(parent=PARENT, timeout=60, retry=None)
    assert caught.value.grpc_status_code.name == code


def test_too_many_requests_message_of_each_api(cloud: Any) -> None:
    calls = asks(cloud)
    cloud.add_fault("error", method="ListNodes", http=429)
    with pytest.raises(exceptions.TooManyRequests) as caught:
        calls["tpu"][1]()
    assert "of service 'tpu.googleapis.com' for consumer 'project_number:" in str(caught.value)
    assert caught.value.reason == "RATE_LIMIT_EXCEEDED"
    cloud.add_fault("error", method="storage.objects.insert", http=429)
    with pytest.raises(exceptions.TooManyRequests) as caught:
        calls["media"][1]()
    assert "The object a-bucket exceeded the rate limit" in str(caught.value)
    (entry,) = caught.value.response.json()["error"]["errors"]
    assert (entry["domain"], entry["reason"]) == ("usageLimits", "rateLimitExceeded")


def test_custom_text_is_not_a_page(cloud: Any) -> None:
    cloud.add_fault("error", method="ListNodes", http=502, text="out for lunch")
    with pytest.raises(exceptions.BadGateway, match="out for lunch") as caught:
        asks(cloud)["tpu"][1]()
    assert caught.value.response.json()["error"]["code"] == 502
