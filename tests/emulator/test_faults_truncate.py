"""Truncated uploads and responses, and how official clients handle them."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import pytest
import requests
from google.api_core import exceptions

from tests.support.locations import PARENT
from tpuctl.local_cloud import remote_control

MIB = 1 << 20
DATA = os.urandom(4 * MIB)


def statuses(cloud: Any) -> list[tuple[str, str]]:
    calls = remote_control.calls(cloud.local_cloud)
    return [(call["method"].rpartition(".")[2], call["status"]) for call in calls]


@pytest.fixture
async def bucket(cloud: Any) -> Any:
    bucket = cloud.storage().bucket("a-bucket")
    await asyncio.to_thread(bucket.create, timeout=60)
    return bucket


def exchange(cloud: Any, request: bytes) -> bytes:
    """All bytes of the response to a request on a new connection."""
    head, _, body = request.partition(b"\r\n\r\n")
    token = f"\r\nAuthorization: Bearer {cloud.token}\r\nHost: x\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", cloud.server.port), timeout=60) as connection:
        connection.sendall(head + token + body)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def test_download_is_truncated_after_n_bytes(cloud: Any, bucket: Any) -> None:
    bucket.blob("b").upload_from_string(DATA, timeout=60)
    for path in ("/storage/v1/b/a-bucket/o/b?alt=media", "/a-bucket/b"):
        for after, arrived in ((0, 0), (1, 1), (300_000, 300_000), (None, 2 * MIB)):
            fault = cloud.add_fault("truncate", method="storage.objects.get", after_bytes=after)
            answer = exchange(cloud, f"GET {path} HTTP/1.1\r\n\r\n".encode())
            head, _, body = answer.partition(b"\r\n\r\n")
            assert f"Content-Length: {4 * MIB}".encode() in head
            assert body == DATA[:arrived]
            assert cloud.used(fault) == 1
    assert ("get", "DISCONNECTED") in statuses(cloud)


def test_range_is_truncated_in_its_middle(cloud: Any, bucket: Any) -> None:
    bucket.blob("b").upload_from_string(DATA, timeout=60)
    fault = cloud.add_fault("truncate", method="storage.objects.get")
    request = b"GET /a-bucket/b HTTP/1.1\r\nRange: bytes=1000-1999\r\n\r\n"
    assert exchange(cloud, request).partition(b"\r\n\r\n")[2] == DATA[1000:1500]
    assert cloud.used(fault) == 1


def test_official_client_resumes_truncated_download(cloud: Any, bucket: Any) -> None:
    blob = bucket.blob("b")
    blob.upload_from_string(DATA, timeout=60)
    fault = cloud.add_fault("truncate", method="storage.objects.get", times=2, after_bytes=MIB)
    assert blob.download_as_bytes(timeout=60) == DATA
    assert cloud.used(fault) == 2


def test_shorter_body_is_not_truncated(cloud: Any, bucket: Any) -> None:
    blob = bucket.blob("b")
    fault = cloud.add_fault("truncate", after_bytes=4 * MIB + 1000, times="unlimited")
    blob.upload_from_string(DATA, timeout=60)
    assert blob.download_as_bytes(timeout=60) == DATA
    blob.delete(timeout=60)
    assert cloud.used(fault) == 0


@pytest.mark.parametrize("kind", ["media", "multipart"])
def test_truncated_upload_leaves_no_object(cloud: Any, bucket: Any, kind: str) -> None:
    fault = cloud.add_fault("truncate", method="storage.objects.insert", after_bytes=2 * MIB)
    blob = bucket.blob("b")

    def upload() -> None:
        if kind == "multipart":
            blob.upload_from_string(DATA, timeout=60, retry=None)
            return
        path = "/upload/storage/v1/b/a-bucket/o?uploadType=media&name=b"
        cloud.request("POST", path, data=DATA)

    with pytest.raises(requests.ConnectionError):
        upload()
    assert cloud.used(fault) == 1
    assert not blob.exists(timeout=60)
    assert list((cloud.server.home / "uploads").iterdir()) == []
    upload()
    assert blob.download_as_bytes(timeout=60) == DATA
    assert ("insert", "DISCONNECTED") in statuses(cloud)


def test_official_client_retries_truncated_upload(cloud: Any, bucket: Any) -> None:
    fault = cloud.add_fault("truncate", method="storage.objects.insert", times=2)
    blob = bucket.blob("b")
    blob.upload_from_string(DATA, if_generation_match=0, timeout=60)
    assert cloud.used(fault) == 2
    assert blob.download_as_bytes(timeout=60) == DATA


def test_truncated_resumable_upload_is_resumed(cloud: Any, bucket: Any) -> None:
    """The request that starts the session has no data and is not truncated."""
    fault = cloud.add_fault("truncate", method="storage.objects.insert", after_bytes=MIB + 1)
    blob = bucket.blob("b", chunk_size=2 * MIB)
    blob.upload_from_string(DATA, if_generation_match=0, timeout=60)
    assert cloud.used(fault) == 1
    assert blob.download_as_bytes(timeout=60) == DATA


def test_upload_session_keeps_data_before_truncation(cloud: Any, bucket: Any) -> None:
    path = "/upload/storage/v1/b/a-bucket/o?uploadType=resumable&name=b"
    begun = cloud.request("POST", path, json={})
    place = begun.headers["Location"].removeprefix(cloud.url)
    cloud.add_fault("truncate", method="storage.objects.insert", after_bytes=MIB)
    with pytest.raises(requests.ConnectionError):
        cloud.request("PUT", place, data=DATA)
    headers = {"Content-Range": f"bytes */{len(DATA)}"}
    response = cloud.request("PUT", place, headers=headers)
    assert (response.status_code, response.headers["Range"]) == (308, f"bytes=0-{MIB - 1}")


def test_upload_response_can_be_truncated(cloud: Any, bucket: Any) -> None:
    fault = cloud.add_fault("truncate", method="storage.objects.insert", body="response")
    blob = bucket.blob("b")

    def upload() -> None:
        blob.upload_from_string(b"data", timeout=60, retry=None)

    with pytest.raises((requests.ConnectionError, requests.exceptions.ChunkedEncodingError)):
        upload()
    assert cloud.used(fault) == 1
    assert blob.download_as_bytes(timeout=60) == b"data"


def test_json_response_is_truncated_after_the_action(cloud: Any) -> None:
    client = cloud.tpu("rest")
    fault = cloud.add_fault("truncate", method="CreateNode", after_bytes=20)
    node = {"accelerator_type": "v3-8", "runtime_version": "tpu-ubuntu2204-base"}
    with pytest.raises((requests.ConnectionError, requests.exceptions.ChunkedEncodingError)):
        client.create_node(parent=PARENT, node_id="one", node=node, timeout=60)
    assert cloud.used(fault) == 1
    assert [name for name, _ in cloud.in_loop(cloud.server.store.items, "tpu.node")] == [
        f"{PARENT}/nodes/one"
    ]
    assert ("v2", "DISCONNECTED") not in statuses(cloud)
    (call,) = remote_control.calls(cloud.local_cloud)
    assert (call["status"], call["faults"]) == ("DISCONNECTED", [fault])


def test_truncated_json_request_has_no_effect(cloud: Any) -> None:
    client = cloud.tpu("rest")
    fault = cloud.add_fault("truncate", method="CreateNode", body="request")
    node = {"accelerator_type": "v3-8", "runtime_version": "tpu-ubuntu2204-base"}
    with pytest.raises(requests.ConnectionError):
        client.create_node(parent=PARENT, node_id="one", node=node, timeout=60)
    assert cloud.used(fault) == 1
    assert list(cloud.in_loop(cloud.server.store.items, "tpu.node")) == []


@pytest.mark.parametrize(("body", "is_done"), [("request", False), ("response", True)])
def test_truncated_grpc_call_keeps_connection(cloud: Any, body: str, is_done: bool) -> None:
    client = cloud.tpu("grpc")
    fault = cloud.add_fault("truncate", method="CreateNode", body=body)
    node = {"accelerator_type": "v3-8", "runtime_version": "tpu-ubuntu2204-base"}
    with pytest.raises(exceptions.ServiceUnavailable, match="Socket closed"):
        client.create_node(parent=PARENT, node_id="one", node=node, timeout=60)
    assert cloud.used(fault) == 1
    assert bool(list(cloud.in_loop(cloud.server.store.items, "tpu.node"))) == is_done


def test_error_response_can_be_truncated(cloud: Any, bucket: Any) -> None:
    fault = cloud.add_fault("truncate", method="storage.objects.get", after_bytes=5)
    answer = exchange(cloud, b"GET /storage/v1/b/a-bucket/o/none HTTP/1.1\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404 ")
    assert len(body) == 5
    assert cloud.used(fault) == 1


async def test_concurrent_requests_use_fault_once(cloud: Any, bucket: Any) -> None:
    fault = await asyncio.to_thread(
        cloud.add_fault, "truncate", method="storage.objects.insert", after_bytes=MIB
    )
    path = "/upload/storage/v1/b/a-bucket/o?uploadType=media&name="

    def upload(name: str) -> bool:
        try:
            return bool(cloud.request("POST", path + name, data=DATA).status_code == 200)
        except requests.ConnectionError:
            return False

    done = await asyncio.gather(*(asyncio.to_thread(upload, name) for name in "abcdef"))
    assert sorted(done) == [False, *[True] * 5]
    assert await asyncio.to_thread(cloud.used, fault) == 1
