"""JSON calls reach only the endpoint, carry the token, and fail like the clients' calls."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from google.auth.credentials import AnonymousCredentials

from tests.support.fake_clock import InstantClock
from tests.support.http_server import QuietHandler
from tpuctl.cloud.classification import NodesClosed
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.endpoints import GOOGLE, Endpoint
from tpuctl.cloud.rest import Rest
from tpuctl.errors import Conflict, Denied, QuotaExceeded, TpuctlError, Transient
from tpuctl.resources.base import Query


class Api:
    """Returns the configured responses, repeating the last one, and records the requests."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes]] = []
        self.requests: list[tuple[str, str, str, bytes]] = []
        api = self

        class Handler(QuietHandler):
            def answer(self) -> None:
                size = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(size)
                token = self.headers.get("Authorization", "")
                api.requests.append((self.command, self.path, token, body))
                answers = api.answers
                status, content = answers.pop(0) if len(answers) > 1 else answers[0]
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = answer

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def cloud(self) -> Cloud:
        url = f"http://127.0.0.1:{self.server.server_address[1]}"
        return Cloud(Endpoint("local", url, "the-token"), "my-project", InstantClock())

    def refuse(self, code: int, status: str, message: str, *details: Any) -> None:
        error = {"code": code, "status": status, "message": message, "details": details}
        self.answers.append((code, json.dumps({"error": error}).encode()))


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    made = Api()
    yield made
    made.server.shutdown()
    made.thread.join()
    made.server.server_close()


async def call_api(cloud: Cloud, verb: str = "GET", **fields: Any) -> dict[str, Any]:
    rest = cloud.client("rest")
    try:
        found: dict[str, Any] = await cloud.call(
            "the request", rest.call, verb, "tpu", "/v2alpha1/things", **fields
        )
        return found
    finally:
        rest.close()


async def test_call_sends_json_and_token_without_proxy(api: Api) -> None:
    api.answers = [(200, b'{"name": "made"}')]
    answer = await call_api(api.cloud(), "POST", body={"a": {"b": 1}}, query={"thingId": "x y"})
    assert answer == {"name": "made"}
    ((verb, path, token, body),) = api.requests
    assert (verb, path) == ("POST", "/v2alpha1/things?thingId=x+y")
    assert token == "Bearer the-token"
    assert json.loads(body) == {"a": {"b": 1}}
    api.answers = [(200, b"")]
    assert await call_api(api.cloud()) == {}


DENIED = "Your request to provision TPU Node has been denied. Please migrate"
QUOTA = {
    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
    "violations": [{"description": "Limit 4 in zone us-central1-b"}],
}


@pytest.mark.parametrize(
    ("code", "status", "message", "details", "expected"),
    [
        (400, "FAILED_PRECONDITION", DENIED, (), NodesClosed),
        (400, "FAILED_PRECONDITION", "not in that state", (), Conflict),
        (409, "ALREADY_EXISTS", "it is there", (), Conflict),
        (403, "PERMISSION_DENIED", "you may not", (), Denied),
        (429, "RESOURCE_EXHAUSTED", "no more", (QUOTA,), QuotaExceeded),
    ],
)
async def test_error_status_is_read_from_body(
    api: Api,
    code: int,
    status: str,
    message: str,
    details: tuple[Any, ...],
    expected: type[TpuctlError],
) -> None:
    api.refuse(code, status, message, *details)
    with pytest.raises(expected, match=message[:20]):
        await call_api(api.cloud())
    assert len(api.requests) == 1, "rejected requests are not retried"


async def test_reasons_of_compute_engine_are_read(api: Api) -> None:
    reason = {"reason": "resourceNotReady", "domain": "global", "message": "not yet"}
    error = {"code": 400, "message": "not yet", "errors": [reason]}  # it sends no status
    api.answers = [(400, json.dumps({"error": error}).encode()), (200, b"{}")]
    assert await call_api(api.cloud()) == {}, "retried, unlike other bad requests"
    assert len(api.requests) == 2


def test_every_page_of_an_aggregated_list_is_read(api: Api) -> None:
    page = {"items": {"zones/us-central1-b": {"disks": [{"name": "a"}]}, "zones/z": {}}}
    first, last = {**page, "nextPageToken": "t+1"}, {"items": {"zones/z": {"disks": [{}, {}]}}}
    api.answers = [(200, json.dumps(answer).encode()) for answer in (first, last)]
    cloud = api.cloud()
    listed = list(Query(cloud, "my-project", "bert", {"timeout": 5.0}).aggregated("disks"))
    cloud.client("rest").close()
    assert listed == [("us-central1-b", {"name": "a"}), ("z", {}), ("z", {})]
    paths = [urlsplit(path) for _, path, _, _ in api.requests]
    assert {path.path for path in paths} == {"/compute/v1/projects/my-project/aggregated/disks"}
    labels = {"filter": ["labels.tpuctl-stack=bert"]}
    assert [parse_qs(path.query) for path in paths] == [labels, {**labels, "pageToken": ["t+1"]}]


@pytest.mark.parametrize("content", [b"<html>Bad gateway</html>", b"[1]", b'{"error": "no"}'])
async def test_non_api_response_is_retried(api: Api, content: bytes) -> None:
    api.answers = [(502, content), (200, b'{"name": "made"}')]
    assert await call_api(api.cloud()) == {"name": "made"}
    assert len(api.requests) == 2


async def test_connection_error_is_transient() -> None:
    cloud = Cloud(
        Endpoint("local", "http://127.0.0.1:9", "the-token"), "my-project", InstantClock()
    )
    with pytest.raises(Transient) as caught:
        await call_api(cloud)
    assert "port=9" in str(caught.value)
    assert "the-token" not in str(caught.value)


def test_service_origins() -> None:
    credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
    assert Rest(GOOGLE, credentials).origin("tpu") == "https://tpu.googleapis.com"
