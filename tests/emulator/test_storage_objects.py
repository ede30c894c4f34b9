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
from google.api_core import exceptions
from google.cloud import storage

BUCKET = "objects-bucket"


@pytest.fixture
async def bucket(cloud: Any) -> Any:
    client = cloud.storage()
    return await asyncio.to_thread(client.create_bucket, BUCKET, location="europe-west4")


def crc32c(data: bytes) -> str:
    return base64.b64encode(google_crc32c.Checksum(data).digest()).decode()


def md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def test_written_data_is_read(bucket: Any) -> None:
    data = bytes(range(256)) * 10
    blob = bucket.blob("folder/한글 name+&%?#.bin")
    blob.metadata = {"step": "7"}
    blob.upload_from_string(data, content_type="application/x-test")
    assert (blob.md5_hash, blob.crc32c) == (md5(data), crc32c(data))
    stored = bucket.get_blob(blob.name)
    assert stored.name == "folder/한글 name+&%?#.bin"
    assert stored.size == len(data)
    assert stored.content_type == "application/x-test"
    assert stored.metadata == {"step": "7"}
    assert stored.generation == blob.generation
    assert stored.metageneration == 1
    assert stored.download_as_bytes() == data
    assert bucket.blob(blob.name).download_as_bytes() == data
    assert stored.download_as_bytes(start=10, end=19) == data[10:20]
    assert stored.download_as_bytes(start=2550) == data[2550:]
    assert stored.exists()
    stored.delete()
    assert not stored.exists()
    with pytest.raises(exceptions.NotFound) as caught:
        stored.delete()
    assert f"No such object: {BUCKET}/{blob.name}" in caught.value.message


def test_empty_object(bucket: Any) -> None:
    blob = bucket.blob("empty")
    blob.upload_from_string(b"")
    assert blob.download_as_bytes() == b""
    assert bucket.get_blob("empty").crc32c == crc32c(b"")


def test_overwriting_raises_the_generation(bucket: Any) -> None:
    blob = bucket.blob("a")
    blob.upload_from_string(b"one")
    first = blob.generation
    blob.upload_from_string(b"two!")
    assert blob.generation > first
    assert bucket.get_blob("a").download_as_bytes() == b"two!"
    with pytest.raises(exceptions.NotFound):
        bucket.blob("a", generation=first).download_as_bytes()


def test_metadata_changes_raise_the_metageneration(bucket: Any) -> None:
    blob = bucket.blob("a")
    blob.upload_from_string(b"one")
    generation = blob.generation
    blob.metadata = {"a": "1", "b": "2"}
    blob.cache_control = "no-store"
    blob.patch()
    assert (blob.generation, blob.metageneration) == (generation, 2)
    blob.metadata = {"a": None, "c": "3"}
    blob.patch()
    stored = bucket.get_blob("a")
    assert stored.metadata == {"b": "2", "c": "3"}
    assert stored.cache_control == "no-store"
    assert stored.metageneration == 3


def test_lists(bucket: Any) -> None:
    client = bucket.client
    names = ["a", "b/1", "b/2", "b/c/3", "b0", "c/", "c/1", "d", "é", "한"]
    for name in reversed(names):
        bucket.blob(name).upload_from_string(b"x")

    def listed(**options: Any) -> list[str]:
        return [blob.name for blob in client.list_blobs(BUCKET, **options)]

    assert listed() == names
    assert listed(prefix="b/") == ["b/1", "b/2", "b/c/3"]
    assert listed(prefix="nothing") == []
    assert listed(start_offset="b/2", end_offset="c/1") == ["b/2", "b/c/3", "b0", "c/"]
    assert listed(max_results=3) == ["a", "b/1", "b/2"]
    assert listed(page_size=1) == names
    assert listed(match_glob="b/*") == ["b/1", "b/2"]
    assert listed(match_glob="**/3") == ["b/c/3"]
    pages = client.list_blobs(BUCKET, delimiter="/", page_size=2)
    assert [blob.name for blob in pages] == ["a", "b0", "d", "é", "한"]
    assert pages.prefixes == {"b/", "c/"}
    inner = client.list_blobs(BUCKET, delimiter="/", prefix="b/")
    assert [blob.name for blob in inner] == ["b/1", "b/2"]
    assert inner.prefixes == {"b/c/"}
    trailing = client.list_blobs(BUCKET, delimiter="/", include_trailing_delimiter=True)
    assert "c/" in [blob.name for blob in trailing]


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
    blob.upload_from_string(b"changed")
    assert other.get_blob("d/e f").download_as_bytes() == b"hello"
    target = other.blob("rewritten")
    target.content_type = "text/html"
    token, done, total = target.rewrite(copy)
    assert (token, done, total) == (None, 5, 5)
    assert other.get_blob("rewritten").content_type == "text/html"
    bucket.rename_blob(blob, "moved")
    assert bucket.get_blob("a b/c") is None
    assert bucket.blob("moved").download_as_bytes() == b"changed"


def test_composed_objects_have_no_md5(bucket: Any) -> None:
    parts = [bucket.blob(f"part-{index}") for index in range(3)]
    for index, part in enumerate(parts):
        part.upload_from_string(bytes([index]) * 1000, content_type="text/plain")
    whole = bucket.blob("whole")
    whole.content_type = "text/plain"
    whole.compose(parts)
    data = b"".join(bytes([index]) * 1000 for index in range(3))
    stored = bucket.get_blob("whole")
    assert stored.download_as_bytes() == data
    assert stored.md5_hash is None
    assert stored.crc32c == crc32c(data)
    assert stored.component_count == 3
    again = bucket.blob("again")
    again.compose([whole, parts[0]], if_generation_match=0)
    assert bucket.get_blob("again").component_count == 4
    with pytest.raises(exceptions.NotFound):
        bucket.blob("never").compose([bucket.blob("absent")])
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("never").compose(
            parts, if_source_generation_match=[1, 2, 3], if_generation_match=0
        )


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
    assert [each.name for each in client.list_blobs("emulated")] == ["big"]
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
    """Of the predefined list projectPrivate, which new objects have."""
    path = f"/storage/v1/b/{bucket.name}"

    def acl(answer: Any) -> list[tuple[str, str]]:
        entries = answer.get("acl", [])
        return [(entry["entity"].rpartition("-")[0], entry["role"]) for entry in entries]

    def get(query: str) -> Any:
        return cloud.request("GET", f"{path}/o/o?projection={query}").json()

    bucket.blob("o").upload_from_string("x")
    project_private = [
        ("project-owners", "OWNER"),
        ("project-editors", "OWNER"),
        ("project-viewers", "READER"),
    ]
    assert (acl(get("full")), acl(get("noAcl"))) == (project_private, [])
    (item,) = cloud.request("GET", f"{path}/o?projection=full").json()["items"]
    assert acl(item) == project_private
    assert cloud.request("PUT", f"{path}/o/o", json=item).ok
    upload = f"/upload{path}/o?uploadType=media&name=o&projection=full"
    assert acl(cloud.request("POST", upload, data=b"x").json()) == project_private
    uniform = {"iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}}}
    cloud.request("PATCH", path, json=uniform)
    assert acl(get("full")) == []
