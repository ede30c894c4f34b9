"""Planned failures of calls that name a retry test, as Google's conformance tests use them."""

from __future__ import annotations

from typing import Any

import pytest
import requests

BUCKET = "retry-tests"
METHODS = {
    "storage.bucket_acl.list": f"GET b/{BUCKET}/acl",
    "storage.buckets.get": f"GET b/{BUCKET}",
    "storage.hmacKey.list": "GET projects/local-project/hmacKeys",
    "storage.notifications.list": f"GET b/{BUCKET}/notificationConfigs",
    "storage.serviceaccount.get": "GET projects/local-project/serviceAccount",
}


@pytest.fixture
async def stocked(cloud: Any) -> Any:
    import asyncio

    path = "/storage/v1/b?project=local-project"
    await asyncio.to_thread(lambda: cloud.request("POST", path, json={"name": BUCKET}))
    return cloud


def begin(cloud: Any, method: str, *instructions: str) -> str:
    answer = cloud.request("POST", "/retry_test", json={"instructions": {method: instructions}})
    assert answer.ok, answer.text
    assert answer.json()["completed"] is False
    return str(answer.json()["id"])


def completed(cloud: Any, test: str) -> bool:
    return bool(cloud.request("GET", f"/retry_test/{test}").json()["completed"])


@pytest.mark.parametrize("method", METHODS)
def test_instructions_apply_to_calls_of_the_test_in_their_order(stocked: Any, method: str) -> None:
    verb, _, path = METHODS[method].partition(" ")
    test = begin(stocked, method, "return-503", "return-reset-connection", "return-400")
    headers = {"x-retry-test-id": test}

    def call(**more: str) -> int:
        return int(stocked.request(verb, f"/storage/v1/{path}", headers=more).status_code)

    assert call() == 200  # another's call
    assert call(**headers) == 503
    with pytest.raises(requests.ConnectionError):
        call(**headers)
    assert not completed(stocked, test)
    assert call(**headers) == 400
    assert call(**headers) == 200
    assert completed(stocked, test)
    assert stocked.request("DELETE", f"/retry_test/{test}").ok
    assert stocked.request("GET", f"/retry_test/{test}").status_code == 404


def test_bytes_of_an_upload_are_counted_over_its_requests(stocked: Any) -> None:
    test = begin(stocked, "storage.resumable.upload", "return-503-after-512K")
    start = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=resumable&name=o"
    url = stocked.request("POST", start, json={}).headers["Location"]
    part, size = b"x" * (256 * 1024), 1024 * 1024

    def send(first: int) -> int:
        place = f"bytes {first}-{first + len(part) - 1}/{size}"
        headers = {
            "Authorization": f"Bearer {stocked.token}",
            "Content-Range": place,
            "x-retry-test-id": test,
        }
        return requests.put(url, data=part, headers=headers, timeout=60).status_code

    statuses = [send(first) for first in (0, 256 * 1024, 512 * 1024, 512 * 1024, 768 * 1024)]
    assert statuses == [308, 308, 503, 308, 200]
    assert completed(stocked, test)


@pytest.mark.parametrize(
    "body",
    [{}, {"instructions": {"storage.buckets.get": ["stall"]}}, {"instructions": ["return-503"]}],
)
def test_other_instructions_are_refused(stocked: Any, body: dict[str, Any]) -> None:
    assert stocked.request("POST", "/retry_test", json=body).status_code == 400
    assert stocked.request("GET", "/_local/faults").json()["faults"] == []
