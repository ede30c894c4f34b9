"""Objects through the official client: writes, reads, lists, copies, compositions."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
from typing import Any

import google_crc32c
import pytest
import requests
from google.cloud import storage

from tpuctl.local_cloud.defaults import OWNER

BUCKET = "objects-bucket"


@pytest.fixture
async def bucket(cloud: Any) -> Any:
    client = cloud.storage()
    return await asyncio.to_thread(client.create_bucket, BUCKET, location="europe-west4")


def crc32c(data: bytes) -> str:
    return base64.b64encode(google_crc32c.Checksum(data).digest()).decode()


def md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def test_copies_are_independent(bucket: Any) -> None:
    other = bucket.client.create_bucket("other-bucket", location="US")
    blob = bucket.blob("a b/c")
    blob.metadata = {"k": "v"}
    blob.upload_from_string(b"hello", content_type="text/plain")
    copy = bucket.copy_blob(blob, other, "d/e f")
    assert (copy.md5_hash, copy.metadata, copy.content_type) == (
        blob.md5_hash,
        {"k": "v"},
        "text/plain",
    )
    first = blob.generation
    blob.upload_from_string(b"changed")
    assert blob.generation > first
    assert other.get_blob("d/e f").download_as_bytes() == b"hello"
    target = other.blob("rewritten")
    target.content_type = "text/html"
    token, done, total = target.rewrite(copy)
    assert (token, done, total) == (None, 5, 5)
    assert other.get_blob("rewritten").content_type == "text/html"
    bucket.rename_blob(blob, "moved")
    assert bucket.get_blob("a b/c") is None
    assert bucket.blob("moved").download_as_bytes() == b"changed"


@pytest.mark.parametrize(
    ("header", "status", "content_range", "expected"),
    [
        ("bytes=0-3", 206, "bytes 0-3/10", b"0123"),
        ("bytes=3-", 206, "bytes 3-9/10", b"3456789"),
        ("bytes=-4", 206, "bytes 6-9/10", b"6789"),
        ("bytes=-40", 206, "bytes 0-9/10", b"0123456789"),
        ("bytes=8-100", 206, "bytes 8-9/10", b"89"),
        ("bytes=10-", 416, "bytes */10", None),
        ("bytes=100-200", 416, "bytes */10", None),
        ("bytes=-0", 416, "bytes */10", None),
        ("bytes=5-2", 200, None, b"0123456789"),
        ("lines=1-2", 200, None, b"0123456789"),
    ],
)
def test_ranges(
    cloud: Any, bucket: Any, header: str, status: int, content_range: str, expected: bytes
) -> None:
    bucket.blob("digits").upload_from_string(b"0123456789")
    for path in (
        f"/storage/v1/b/{BUCKET}/o/digits?alt=media",
        f"/download/storage/v1/b/{BUCKET}/o/digits?alt=media",
        f"/{BUCKET}/digits",
    ):
        answer = cloud.request("GET", path, headers={"Range": header})
        assert answer.status_code == status
        assert answer.headers.get("Content-Range") == content_range
        if expected is not None:
            assert answer.content == expected
            whole = f"crc32c={crc32c(b'0123456789')},md5={md5(b'0123456789')}"
            # The object's hash does not apply to a range; the XML API sends it nevertheless.
            is_whole = len(expected) == 10 or path.startswith(f"/{BUCKET}/")
            assert answer.headers.get("X-Goog-Hash") == (whole if is_whole else None)


def test_files_are_read_and_written_through_the_clients_file_interface(bucket: Any) -> None:
    with bucket.blob("log").open("w") as out:
        for index in range(1000):
            out.write(f"line {index}\n")
    with bucket.blob("log").open("r") as lines:
        assert sum(1 for _ in lines) == 1000


def test_batches(bucket: Any) -> None:
    client = bucket.client
    for name in ("a", "b/ c", "d"):
        bucket.blob(name).upload_from_string(b"x")
    with client.batch():
        bucket.blob("a").delete()
        bucket.blob("b/ c").delete()
        changed = bucket.blob("d")
        changed.metadata = {"k": "v"}
        changed.patch()
    assert [blob.name for blob in client.list_blobs(BUCKET)] == ["d"]
    assert bucket.get_blob("d").metadata == {"k": "v"}
    with client.batch(raise_exception=False):
        bucket.blob("gone").delete()
        bucket.blob("d").delete()
    assert not list(client.list_blobs(BUCKET))


def test_the_client_works_in_emulator_mode_with_the_token_in_the_url(
    cloud: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"{cloud.url}/t/{cloud.token}")

    client = storage.Client()
    bucket = client.create_bucket("emulated")
    blob = bucket.blob("big")
    blob.chunk_size = 256 * 1024
    data = b"x" * 600_000
    blob.upload_from_file(io.BytesIO(data))
    assert blob.download_as_bytes() == data
    assert [blob.name for blob in client.list_blobs("emulated")] == ["big"]
    with client.batch():
        blob.delete()
    bucket.delete()
    client._http.close()


def test_large_objects_stream(cloud: Any, bucket: Any) -> None:
    data = hashlib.sha256(b"seed").digest() * (1 << 20)  # 32 MiB
    blob = bucket.blob("large")
    blob.upload_from_file(io.BytesIO(data), size=len(data))
    stored = bucket.get_blob("large")
    assert stored.crc32c == crc32c(data)
    assert hashlib.md5(stored.download_as_bytes()).digest() == hashlib.md5(data).digest()


def test_download_continues_while_object_is_replaced(cloud: Any, bucket: Any) -> None:
    data = b"a" * (8 << 20)
    bucket.blob("o").upload_from_string(data)

    headers = {"Authorization": f"Bearer {cloud.token}"}
    with requests.Session() as session:
        session.trust_env = False
        url = f"{cloud.url}/{BUCKET}/o"
        with session.get(url, headers=headers, stream=True, timeout=60) as answer:
            pieces = answer.iter_content(1 << 16)
            got = next(pieces)
            bucket.blob("o").upload_from_string(b"b")
            got += b"".join(pieces)
    assert got == data
    assert bucket.blob("o").download_as_bytes() == b"b"


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 1025, "a\nb"])
def test_invalid_object_names(cloud: Any, bucket: Any, name: str) -> None:
    answer = cloud.request(
        "POST",
        f"/upload/storage/v1/b/{BUCKET}/o",
        params={"uploadType": "media", "name": name},
        data=b"x",
    )
    assert answer.status_code == 400


@pytest.mark.malformed
@pytest.mark.parametrize("body", [b"", b"null", b"{}"])
def test_requests_without_a_resource(cloud: Any, bucket: Any, body: bytes) -> None:
    """Go's clients send `null` where they have no resource: every server-side copy of rclone."""
    object_path = f"/storage/v1/b/{bucket.name}/o/o"
    upload = f"/upload/storage/v1/b/{bucket.name}/o"
    calls = {
        f"POST {object_path}/rewriteTo/b/{bucket.name}/o/copy": 200,
        f"POST {object_path}/copyTo/b/{bucket.name}/o/copy": 200,
        f"POST {object_path}/moveTo/o/copy": 200,
        f"POST {upload}?uploadType=resumable&name=o": 200,
        f"POST {upload}?uploadType=multipart&name=o": 200,
        f"PATCH {object_path}": 200,
        f"PUT {object_path}": 200,
        f"POST {object_path}/compose": 400,  # a source is required
        f"PATCH /storage/v1/b/{bucket.name}": 200,
        f"PUT /storage/v1/b/{bucket.name}": 200,
        "POST /storage/v1/b?project=local-project": 400,  # so is a name
        f"PUT /storage/v1/b/{bucket.name}/iam": 200,
    }

    for call, status in calls.items():
        bucket.blob("o").upload_from_string("x")
        verb, _, path = call.partition(" ")
        data, headers = body, {}
        if "multipart" in path:
            data = b"--x\r\n\r\n" + body + b"\r\n--x\r\n\r\nx\r\n--x--"
            headers = {"Content-Type": "multipart/related; boundary=x"}
        answer = cloud.request(verb, path, data=data, headers=headers)
        assert answer.status_code == status, (call, answer.text)
        assert "Parse" not in answer.text


def test_slash_in_a_path_is_part_of_a_name_only_if_escaped(cloud: Any, bucket: Any) -> None:
    """googleapis/elixir-google-api#6510, elastic/connectors#1695: 404 for unescaped ones."""
    root = f"/storage/v1/b/{bucket.name}/o"
    calls = [
        *(f"{verb} {root}/NAME" for verb in ("GET", "PATCH", "PUT")),
        f"GET {root}/NAME?alt=media",
        f"GET /download{root}/NAME?alt=media",
        f"POST {root}/NAME/rewriteTo/b/{bucket.name}/o/x",
        f"POST {root}/x/rewriteTo/b/{bucket.name}/o/NAME",
        f"POST {root}/x/copyTo/b/{bucket.name}/o/NAME",
        f"POST {root}/x/moveTo/o/NAME",
        f"DELETE {root}/NAME",
    ]

    for call in calls:
        for name in ("a/b", "x", "a//b", "a/"):
            bucket.blob(name).upload_from_string("x")
        verb, _, path = call.partition(" ")
        for name in ("a/b", "a//b", "a/"):
            answer = cloud.request(verb, path.replace("NAME", name))
            assert answer.status_code == 404, (call, name)
        answer = cloud.request(verb, path.replace("NAME", "a%2Fb"))
        assert answer.ok, (call, answer.text)
        body = f"--b\r\nContent-Type: application/http\r\n\r\nGET {root}/a/b\r\n\r\n--b--"
        headers = {"Content-Type": "multipart/mixed; boundary=b"}
        answer = cloud.request("POST", "/batch/storage/v1", data=body, headers=headers)
        assert "HTTP/1.1 404" in answer.text


def test_full_projection_has_the_access_controls(cloud: Any, bucket: Any) -> None:
    """Of the predefined list projectPrivate, which new objects have, and of whoever uploaded it."""
    path = f"/storage/v1/b/{bucket.name}"

    def acl(answer: Any) -> list[tuple[str, str]]:
        entries = answer.get("acl", [])
        return [
            (entry["entity"].removesuffix(f"-{bucket.project_number}"), entry["role"])
            for entry in entries
        ]

    def get(query: str) -> Any:
        return cloud.request("GET", f"{path}/o/o?projection={query}").json()

    bucket.blob("o").upload_from_string("x")
    project_private = [
        ("project-owners", "OWNER"),
        ("project-editors", "OWNER"),
        ("project-viewers", "READER"),
        (f"user-{OWNER}", "OWNER"),
    ]
    assert get("full")["owner"] == {"entity": f"user-{OWNER}"}
    assert "owner" not in get("noAcl")
    assert (acl(get("full")), acl(get("noAcl"))) == (project_private, [])
    (item,) = cloud.request("GET", f"{path}/o?projection=full").json()["items"]
    assert acl(item) == project_private
    assert cloud.request("PUT", f"{path}/o/o", json=item).ok
    upload = f"/upload{path}/o?uploadType=media&name=o&projection=full"
    assert acl(cloud.request("POST", upload, data=b"x").json()) == project_private
    uniform = {"iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}}}
    cloud.request("PATCH", path, json=uniform)
    assert acl(get("full")) == []


@pytest.mark.parametrize(
    ("predefined", "entries"),
    [
        ("authenticatedRead", {"allAuthenticatedUsers": "READER"}),
        ("bucketOwnerFullControl", {"project-owners": "OWNER"}),
        ("bucketOwnerRead", {"project-owners": "READER"}),
        ("private", {}),
        ("publicRead", {"allUsers": "READER"}),
    ],
)
def test_predefined_list_of_an_object_has_its_owner(
    bucket: Any, predefined: str, entries: dict[str, str]
) -> None:
    """The entries are those of the descriptions of objects.insert's parameter predefinedAcl."""
    blob = bucket.blob("o")
    blob.upload_from_string("x", predefined_acl=predefined)
    number = bucket.project_number
    actual = {entry["entity"].removesuffix(f"-{number}"): entry["role"] for entry in blob.acl}
    assert actual == {**entries, f"user-{OWNER}": "OWNER"}
