"""Uploads as different clients send them: multipart quirks, resumable with interruptions, XML."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import itertools
import socket
import zlib
from typing import Any
from urllib.parse import urlsplit

import google_crc32c
import pytest

BUCKET = "uploads-bucket"
UPLOAD = f"/upload/storage/v1/b/{BUCKET}/o"


@pytest.fixture
async def bucket_cloud(cloud: Any) -> Any:
    await asyncio.to_thread(
        cloud.request, "POST", "/storage/v1/b?project=local-project", json={"name": BUCKET}
    )
    return cloud


def begin(cloud: Any, name: str = "o", **headers: str) -> str:
    answer = cloud.request(
        "POST", f"{UPLOAD}?uploadType=resumable&name={name}", data=b"{}", headers=headers
    )
    assert answer.status_code == 200
    location: str = answer.headers["Location"]
    assert location.startswith(cloud.url)
    return location.removeprefix(cloud.url)


def put(cloud: Any, address: str, data: Any, content_range: str, **headers: str) -> Any:
    return cloud.request(
        "PUT", address, data=data, headers={"Content-Range": content_range, **headers}
    )


def put_in_part(cloud: Any, address: str, headers: str, body: bytes, total: str = "*") -> Any:
    """Start a request and abort it; returns the server's status of the upload."""
    head = f"PUT {address} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {cloud.token}\r\n"
    with socket.create_connection(("127.0.0.1", cloud.server.port)) as near:
        near.sendall(f"{head}{headers}\r\n\r\n".encode() + body)
    # It may still be processing the sent data.
    for _ in range(200):
        status = put(cloud, address, b"", f"bytes */{total}")
        if status.status_code == 308 and "Range" in status.headers:
            break
    return status


def content(cloud: Any, name: str = "o") -> bytes:
    answer = cloud.request("GET", f"/storage/v1/b/{BUCKET}/o/{name}?alt=media")
    assert answer.status_code == 200
    data: bytes = answer.content
    return data


def crc32c(data: bytes) -> str:
    return base64.b64encode(google_crc32c.Checksum(data).digest()).decode()


# Content that resembles the delimiters, with line ends and dashes.
CONTENTS = (
    *(b"", b"hello", b"\n", b"\r\n", b"\r", b"\n\r", b"\r\r\n"),
    *(b"ends\n", b"ends\r", b"ends\r\n", b"ends\r\n\r\n", b"\nstarts", b"\r\nstarts", b"\rstarts"),
    *(b"--x--\r\n", b"--x--\r", b"z" * 700_000, b"z" * 700_000 + b"\r"),
)


@pytest.mark.parametrize("line_end", ["\r\n", "\n"])
def test_multipart(bucket_cloud: Any, line_end: str) -> None:
    end = line_end.encode()

    def send(head: bytes, data: bytes, quote: str) -> None:
        body = (
            b"--===x==" + end
            + b"Content-Type: application/json; charset=UTF-8" + end + end
            + b'{"name": "o", "metadata": {"k": "v"}}' + end
            + b"--===x==" + end
            + head + end
            + data + end
            + b"--===x==--"
        )  # fmt: skip
        answer = bucket_cloud.request(
            "POST",
            f"{UPLOAD}?uploadType=multipart",
            data=body,
            headers={"Content-Type": f"multipart/related; boundary={quote}===x=={quote}"},
        )
        resource = answer.json()
        assert answer.status_code == 200, resource
        assert resource["md5Hash"] == base64.b64encode(hashlib.md5(data).digest()).decode(), data
        assert resource["metadata"] == {"k": "v"}
        assert resource.get("contentType") == ("text/x-test" if head else None)
        assert content(bucket_cloud) == data

    quotes = itertools.cycle(("", '"', "'"))
    for data in CONTENTS:
        for head in (b"Content-Type: text/x-test" + end, b""):
            send(head, data, next(quotes))


def test_multipart_with_mixed_line_ends(bucket_cloud: Any) -> None:
    """The first delimiter determines the line end; a bare LF before the last one is accepted."""

    for last in (b"\r\n", b"\n"):
        body = b'--x\r\nA: b\r\n\r\n{"name": "o"}\r\n--x\r\nA: b\n\n' + b"data" + last + b"--x--"
        headers = {"Content-Type": "multipart/related; boundary=x"}
        address = f"{UPLOAD}?uploadType=multipart"
        assert bucket_cloud.request("POST", address, data=body, headers=headers).status_code == 200
        assert content(bucket_cloud) == b"data"


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ("multipart/related", b"--x\r\n"),
        ("multipart/related; boundary=x", b""),
        ("multipart/related; boundary=x", b"--x\r\n\r\n{}\r\n--x\r\n\r\ndata without an end"),
        ("multipart/related; boundary=x", b'--x\r\n\r\n{"name": \r\n--x\r\n\r\nd\r\n--x--'),
        ("multipart/related; boundary=x", b"--x\r\n\r\n[]\r\n--x\r\n\r\nd\r\n--x--"),
        ("multipart/related; boundary=x", b"--x\r\n\r\n{}\r\n--x\r\n\r\nno name\r\n--x--"),
    ],
)
def test_invalid_multipart(bucket_cloud: Any, header: str, body: bytes) -> None:
    answer = bucket_cloud.request(
        "POST", f"{UPLOAD}?uploadType=multipart", data=body, headers={"Content-Type": header}
    )
    assert answer.status_code == 400
    listing = bucket_cloud.request("GET", f"/storage/v1/b/{BUCKET}/o")
    assert "items" not in listing.json()


def test_resumable_chunk_sent_twice_is_stored_once(bucket_cloud: Any) -> None:
    address = begin(bucket_cloud)
    put(bucket_cloud, address, b"0123456789", "bytes 0-*/15")
    again = put(bucket_cloud, address, b"56789abcde", "bytes 5-14/15")
    assert again.status_code == 200
    assert content(bucket_cloud) == b"0123456789abcde"


@pytest.mark.parametrize(
    "header",
    [
        *("bytes 20-29/30", "bytes 5-2/10", "bytes 0-9/5", "bytes x-y/z", "nonsense"),
        *("bytes 20-*/*", "bytes 6-*/5", "bytes *-5/10", "bytes 0-*"),
    ],
)
def test_resumable_with_invalid_ranges(bucket_cloud: Any, header: str) -> None:
    address = begin(bucket_cloud)
    put(bucket_cloud, address, b"01234", "bytes 0-*/10")
    assert put(bucket_cloud, address, b"0123456789", header).status_code == 400
    status = put(bucket_cloud, address, b"", "bytes */*")
    assert status.headers["Range"] == "bytes=0-4"


@pytest.mark.parametrize("total", ["*", "300000"])
def test_resumable_chunks_have_a_least_size(bucket_cloud: Any, total: str) -> None:
    """The message is in google-resumable-media, tests/system/requests/test_upload.py."""
    address, least = begin(bucket_cloud), 256 * 1024
    answer = put(bucket_cloud, address, b"a" * 1024, f"bytes 0-1023/{total}")
    refusal = (
        400,
        "Invalid request.  The number of bytes uploaded is required to be equal or greater than "
        "262144, except for the final request (it's recommended to be the exact multiple of "
        "262144).  The received request contained 1024 bytes, which does not meet this "
        "requirement.",
    )
    assert (answer.status_code, answer.text) == refusal
    other = put(bucket_cloud, address, b"a" * least, f"bytes 0-{least - 1}/{total}")
    assert (other.status_code, other.text) == refusal, "the session takes nothing more"
    address = begin(bucket_cloud)
    first = put(bucket_cloud, address, b"a" * least, f"bytes 0-{least - 1}/{total}")
    assert (first.status_code, first.headers["Range"]) == (308, f"bytes=0-{least - 1}")
    last = put(bucket_cloud, address, b"b" * 37_856, f"bytes {least}-299999/300000")
    assert (last.status_code, last.json()["size"]) == (200, "300000")


def test_clients_may_ask_for_another_status_than_308(bucket_cloud: Any) -> None:
    """As Go's clients do, with the header by which they recognize it
    (google-api-go-client, internal/gensupport/resumable.go)."""
    address, least = begin(bucket_cloud), 256 * 1024
    wish = {"X-GUploader-No-308": "yes"}
    first = put(bucket_cloud, address, b"a" * least, f"bytes 0-{least - 1}/*", **wish)
    override = first.headers["X-Http-Status-Code-Override"]
    assert (first.status_code, override, first.content) == (200, "308", b"")
    assert first.headers["Range"] == f"bytes=0-{least - 1}"
    last = put(bucket_cloud, address, b"b", f"bytes {least}-{least}/{least + 1}", **wish)
    assert (last.status_code, last.json()["size"]) == (200, str(least + 1))
    assert "X-Http-Status-Code-Override" not in last.headers


def test_too_large_metadata_is_called_so(bucket_cloud: Any) -> None:
    """So expects googleapis/nodejs-storage, system-test/storage.ts."""
    body = b'--x\r\n\r\n{"metadata": {"a": "' + b"a" * 2_100_000 + b'"}}\r\n--x\r\n\r\nd\r\n--x--'
    headers = {"Content-Type": "multipart/related; boundary=x"}
    path = f"{UPLOAD}?uploadType=multipart&name=o"
    answer = bucket_cloud.request("POST", path, data=body, headers=headers)
    assert answer.status_code == 400
    assert "Metadata part is too large" in answer.text


@pytest.mark.parametrize("data", [b"", b"0123456789"])
@pytest.mark.parametrize("total", ["*", "size"])
def test_resumable_with_open_ended_range(bucket_cloud: Any, data: bytes, total: str) -> None:
    """Node's client sends everything as `bytes 0-*/*`, or with the size if known."""

    size = str(len(data)) if total == "size" else total
    answer = put(bucket_cloud, begin(bucket_cloud), data, f"bytes 0-*/{size}")
    assert answer.status_code == 200, answer.text
    assert answer.json()["size"] == str(len(data))
    assert content(bucket_cloud) == data
    chunked = put(
        bucket_cloud, begin(bucket_cloud, "chunked"), iter([data, b"more"]), "bytes 0-*/*"
    )
    assert chunked.status_code == 200
    assert content(bucket_cloud, "chunked") == data + b"more"


def test_resumable_continues_with_open_ended_range(bucket_cloud: Any) -> None:
    for total in ("*", "10"):
        address = begin(bucket_cloud)
        assert put(bucket_cloud, address, b"01234", "bytes 0-*/10").status_code == 308
        assert put(bucket_cloud, address, b"56789", f"bytes 5-*/{total}").status_code == 200
        assert content(bucket_cloud) == b"0123456789"
    # All data arrived and the response was lost: nothing is left to send.
    address = begin(bucket_cloud)
    put(bucket_cloud, address, b"01234", "bytes 0-*/10")
    assert put(bucket_cloud, address, b"", "bytes 5-*/5").status_code == 200
    assert content(bucket_cloud) == b"01234"


def test_resumable_of_unknown_size_creates_object_when_complete(bucket_cloud: Any) -> None:
    address = begin(bucket_cloud)
    chunked = "Transfer-Encoding: chunked\r\nContent-Range: bytes 0-*/*"
    status = put_in_part(bucket_cloud, address, chunked, b"5\r\n01234\r\n")
    assert (status.status_code, status.headers["Range"]) == (308, "bytes=0-4")
    assert bucket_cloud.request("GET", f"/storage/v1/b/{BUCKET}/o/o").status_code == 404
    assert put(bucket_cloud, address, b"56789", "bytes 5-*/*").status_code == 200
    assert content(bucket_cloud) == b"0123456789"


def test_resumable_continues_after_broken_connection(bucket_cloud: Any) -> None:
    address = begin(bucket_cloud)
    whole = "Content-Length: 100000\r\nContent-Range: bytes 0-99999/100000"
    status = put_in_part(bucket_cloud, address, whole, b"a" * 40_000, total="100000")
    data = b"a" * 40_000 + b"b" * 60_000
    received = int(status.headers["Range"].rpartition("-")[2]) + 1
    assert 0 < received <= 40_000
    answer = put(bucket_cloud, address, data[received:], f"bytes {received}-99999/100000")
    assert answer.status_code == 200
    assert answer.json()["crc32c"] == crc32c(data)
    assert content(bucket_cloud) == data


async def test_resumable_survives_restart(make_cloud: Any) -> None:
    cloud = await make_cloud()
    await asyncio.to_thread(
        cloud.request, "POST", "/storage/v1/b?project=local-project", json={"name": BUCKET}
    )
    address = await asyncio.to_thread(begin, cloud)
    await asyncio.to_thread(put, cloud, address, b"01234", "bytes 0-*/10")
    await cloud.server.close()
    again = await make_cloud()
    answer = await asyncio.to_thread(put, again, address, b"56789", "bytes 5-9/10")
    assert answer.json()["crc32c"] == crc32c(b"0123456789")
    assert await asyncio.to_thread(content, again) == b"0123456789"


@pytest.mark.parametrize("claim", ["crc32c=AAAAAA==", "md5=AAAAAAAAAAAAAAAAAAAAAA=="])
def test_wrong_checksums_are_rejected(bucket_cloud: Any, claim: str) -> None:
    headers = {"X-Goog-Hash": claim}
    answer = bucket_cloud.request(
        "POST", f"{UPLOAD}?uploadType=media&name=o", data=b"x", headers=headers
    )
    assert answer.status_code == 400
    assert "doesn't match calculated" in answer.json()["error"]["message"]
    address = begin(bucket_cloud)
    assert put(bucket_cloud, address, b"x", "bytes 0-0/1", **headers).status_code == 400
    assert bucket_cloud.request("GET", f"/storage/v1/b/{BUCKET}/o/o").status_code == 404


def test_links_have_scheme_and_host_of_request(bucket_cloud: Any) -> None:
    headers = {"Host": "www.googleapis.com", "X-Forwarded-Proto": "https"}
    answer = bucket_cloud.request(
        "POST", f"{UPLOAD}?uploadType=resumable&name=o", data=b"{}", headers=headers
    )
    assert answer.headers["Location"].startswith("https://www.googleapis.com/upload/storage/v1")
    prefix = f"/t/{bucket_cloud.token}"
    answer = bucket_cloud.request(
        "POST", f"{prefix}{UPLOAD}?uploadType=resumable&name=o", data=b"{}"
    )
    location = answer.headers["Location"]
    assert urlsplit(location).path == prefix + UPLOAD
    resource = bucket_cloud.request(
        "PUT", location.removeprefix(bucket_cloud.url), data=b"x", headers={"Authorization": ""}
    ).json()
    assert resource["mediaLink"].startswith(bucket_cloud.url + prefix)
    link = resource["mediaLink"].removeprefix(bucket_cloud.url)
    assert bucket_cloud.request("GET", link, headers={"Authorization": ""}).content == b"x"


def test_chunked_uploads_with_content_length(bucket_cloud: Any) -> None:
    """TensorFlow sends both headers, and waits for 100 Continue."""

    address = begin(bucket_cloud)
    head = (
        f"PUT {address} HTTP/1.1\r\nHost: www.googleapis.com\r\n"
        f"Authorization: Bearer {bucket_cloud.token}\r\nContent-Length: 11\r\n"
        "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n"
        "Content-Range: bytes 0-10/11\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", bucket_cloud.server.port), timeout=60) as near:
        near.sendall(head.encode())
        assert near.recv(1000).startswith(b"HTTP/1.1 100 ")
        near.sendall(b"6\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n")
        assert near.recv(1000).startswith(b"HTTP/1.1 200 ")
    assert content(bucket_cloud) == b"hello world"


def test_xml_paths(bucket_cloud: Any) -> None:
    host = {"Host": "storage.googleapis.com"}
    path = f"/{BUCKET}/a%20b/c"
    answer = bucket_cloud.request(
        "PUT", path, data=b"hello", headers={**host, "Content-Type": "text/plain"}
    )
    assert answer.status_code == 200
    for headers in (host, {}):
        answer = bucket_cloud.request("GET", path, headers=headers)
        assert (answer.status_code, answer.content) == (200, b"hello")
        assert answer.headers["Content-Type"] == "text/plain"
    answer = bucket_cloud.request("GET", path, headers={**host, "Range": "bytes=1-2"})
    assert (answer.status_code, answer.content) == (206, b"el")
    answer = bucket_cloud.request("HEAD", path, headers=host)
    assert (answer.headers["Content-Length"], answer.content) == ("5", b"")
    bucket_host = {"Host": f"{BUCKET}.storage.googleapis.com"}
    assert bucket_cloud.request("GET", "/a%20b/c", headers=bucket_host).content == b"hello"
    resource = bucket_cloud.request("GET", f"/storage/v1/b/{BUCKET}/o/a%20b%2Fc").json()
    assert resource["contentType"] == "text/plain"
    late = {**host, "x-goog-if-generation-match": "1"}
    assert bucket_cloud.request("PUT", path, data=b"x", headers=late).status_code == 412
    assert bucket_cloud.request("DELETE", path, headers=host).status_code == 204
    response = bucket_cloud.request("GET", path, headers=host)
    assert response.status_code == 404
    assert "<Code>NoSuchKey</Code>" in response.text
    nowhere = bucket_cloud.request("GET", "/no-such-bucket/o", headers=host)
    assert "<Code>NoSuchBucket</Code>" in nowhere.text


PLAIN = b"hello " * 100_000
GZIPPED = gzip.compress(PLAIN[:300_000]) + gzip.compress(PLAIN[300_000:])  # two members


@pytest.mark.parametrize("encoding", ["gzip", "br", "identity", "my-own"])
@pytest.mark.parametrize("in_parts", [False, True])
def test_xml_uploads_store_encoded_bytes_as_sent(
    bucket_cloud: Any, encoding: str, in_parts: bool
) -> None:
    """cloud.google.com/storage/docs/transcoding: Content-Encoding is metadata of the object."""
    path, headers = f"/{BUCKET}/o", {"Content-Encoding": encoding}
    data = GZIPPED if encoding == "gzip" else b"not really compressed"

    def upload() -> None:
        if not in_parts:
            md5 = base64.b64encode(hashlib.md5(data).digest()).decode()
            sums = {"Content-MD5": md5, "X-Goog-Hash": f"crc32c={crc32c(data)}"}
            answer = bucket_cloud.request("PUT", path, data=data, headers={**headers, **sums})
            assert answer.status_code == 200, answer.text
            return
        answer = bucket_cloud.request("POST", f"{path}?uploads", headers=headers)
        upload = answer.text.partition("<UploadId>")[2].partition("<")[0]
        part = f"{path}?uploadId={upload}"
        answer = bucket_cloud.request("PUT", f"{part}&partNumber=1", data=data, headers=headers)
        tag = answer.headers["ETag"]
        body = f"<Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part>"
        body = f"<CompleteMultipartUpload>{body}</CompleteMultipartUpload>"
        assert bucket_cloud.request("POST", part, data=body).status_code == 200

    upload()
    resource = bucket_cloud.request("GET", f"/storage/v1/b/{BUCKET}/o/o").json()
    assert resource["contentEncoding"] == encoding
    assert (resource["size"], resource["crc32c"]) == (str(len(data)), crc32c(data))
    for address in (path, f"/storage/v1/b/{BUCKET}/o/o?alt=media"):
        answer = bucket_cloud.request(
            "GET", address, headers={"Accept-Encoding": "gzip"}, stream=True
        )
        assert answer.raw.read() == data
        assert answer.headers["Content-Length"] == str(len(data))
        assert answer.headers["X-Goog-Stored-Content-Encoding"] == encoding
        assert f"crc32c={crc32c(data)}" in answer.headers["X-Goog-Hash"]
    for accepted in ("identity", "gzip;q=0"):
        answer = bucket_cloud.request("GET", path, headers={"Accept-Encoding": accepted})
        assert answer.content == (PLAIN if encoding == "gzip" else data)


@pytest.mark.parametrize("kind", ["media", "multipart", "resumable"])
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_json_uploads_compressed_for_the_transfer_are_stored_plain(
    bucket_cloud: Any, kind: str, encoding: str
) -> None:
    """Measured by kmoneil/zig-gcp: its docs/storage/checksums-and-compression.md."""

    address, body, more = f"{UPLOAD}?uploadType={kind}&name=o", PLAIN, {}
    if kind == "multipart":
        body = b"--x\r\n\r\n{}\r\n--x\r\n\r\n" + PLAIN + b"\r\n--x--"
        more = {"Content-Type": "multipart/related; boundary=x"}
    if kind == "resumable":
        address = begin(bucket_cloud)
    body = GZIPPED if body is PLAIN and encoding == "gzip" else gzip.compress(body)
    if encoding == "deflate":
        body = zlib.compress(gzip.decompress(body))
    headers = {"Content-Encoding": encoding, **more}
    verb = "PUT" if kind == "resumable" else "POST"
    answer = bucket_cloud.request(verb, address, data=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["crc32c"], "contentEncoding" in answer.json()) == (
        crc32c(PLAIN),
        False,
    )
    assert content(bucket_cloud) == PLAIN


@pytest.mark.parametrize(
    ("encoding", "data"),
    [("gzip", b"plain"), ("gzip", GZIPPED[:100]), ("zstd", b"x"), ("deflate", b"x")],
    ids=["plain", "truncated", "zstd", "deflate"],  # compressed data contain the time
)
def test_bodies_that_cannot_be_decoded_are_rejected(
    bucket_cloud: Any, encoding: str, data: bytes
) -> None:
    address = f"{UPLOAD}?uploadType=media&name=o"
    headers = {"Content-Encoding": encoding}

    answer = bucket_cloud.request("POST", address, data=data, headers=headers)
    assert answer.status_code == 400, answer.text
    assert bucket_cloud.request("GET", f"/storage/v1/b/{BUCKET}/o/o").status_code == 404


def test_no_draft_is_left_behind(bucket_cloud: Any) -> None:
    off = {"softDeletePolicy": {"retentionDurationSeconds": "0"}}
    assert bucket_cloud.request("PATCH", f"/storage/v1/b/{BUCKET}", json=off).status_code == 200
    bucket_cloud.request("POST", f"{UPLOAD}?uploadType=media&name=o", data=b"x")
    address = begin(bucket_cloud)
    put(bucket_cloud, address, b"x", "bytes 0-0/1")
    bucket_cloud.request("POST", f"{UPLOAD}?uploadType=media&name=o&ifGenerationMatch=0", data=b"x")
    bucket_cloud.request("DELETE", f"/storage/v1/b/{BUCKET}/o/o")
    folders = [bucket_cloud.server.home / "uploads", bucket_cloud.server.home / "objects"]
    assert [path for folder in folders for path in folder.rglob("*") if path.is_file()] == []


async def test_sessions_expire_after_a_week(make_cloud: Any) -> None:
    cloud = await make_cloud()
    path = "/storage/v1/b?project=local-project"
    await asyncio.to_thread(cloud.request, "POST", path, json={"name": BUCKET})
    old, young = [await asyncio.to_thread(begin, cloud) for _ in range(2)]
    upload_id = old.partition("upload_id=")[2]
    cloud.server.store.run(
        "UPDATE uploads SET body=json_set(body, '$.started', json_extract(body, '$.started') - ?) "
        "WHERE id=?",
        7 * 24 * 3600,
        upload_id,
    )
    await cloud.server.close()
    again = await make_cloud()
    assert len(list((again.server.home / "uploads").iterdir())) == 1
    assert (await asyncio.to_thread(put, again, old, b"x", "bytes 0-0/1")).status_code == 404
    assert (await asyncio.to_thread(put, again, young, b"x", "bytes 0-0/1")).status_code == 200


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("name=o", "Upload requests must include an uploadType URL parameter and a URL path"),
        ("uploadType=media&name=o", "Uploads must be sent to the upload URL. Re-send this request"),
    ],
)
def test_upload_to_wrong_path_names_the_right_one(cloud: Any, query: str, message: str) -> None:
    """Messages from fsouza/fake-gcs-server#1251 and google/google-api-javascript-client#200."""

    cloud.request("POST", "/storage/v1/b?project=local-project", json={"name": "paths"})
    answer = cloud.request("POST", f"/storage/v1/b/paths/o?{query}", data=b"data")
    error = answer.json()["error"]
    assert (answer.status_code, error["errors"][0]["reason"]) == (400, "wrongUrlForUpload")
    assert error["message"].startswith(message)
    _, _, url = error["message"].partition(cloud.url)
    if url:
        assert cloud.request("POST", url, data=b"data").status_code == 200
