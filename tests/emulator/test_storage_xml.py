"""The XML API: buckets, and uploads of many parts."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import random
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

BUCKET = "xml-bucket"
HOST = {"Host": "storage.googleapis.com", "x-goog-project-id": "local-project"}
NAMESPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"
MEBIBYTE = 2**20


@pytest.fixture
async def stocked(cloud: Any) -> Any:
    answer = await asyncio.to_thread(cloud.request, "PUT", f"/{BUCKET}", headers=HOST)
    assert answer.status_code == 200, answer.text
    return cloud


def texts(answer: Any, name: str) -> list[str]:
    assert answer.status_code == 200, answer.text
    root = ElementTree.fromstring(answer.content)
    return [element.text or "" for element in root.iter(NAMESPACE + name)]


def code(answer: Any) -> tuple[int, str]:
    match = re.search("<Code>(.*?)</Code>", answer.text)
    assert match is not None, answer.text
    return answer.status_code, match[1]


def test_buckets_are_created_listed_and_deleted(stocked: Any) -> None:
    def send(verb: str, path: str, **more: Any) -> Any:
        return stocked.request(verb, path, headers=HOST, **more)

    body = (
        "<CreateBucketConfiguration><LocationConstraint>EUROPE-WEST4</LocationConstraint>"
        "<StorageClass>NEARLINE</StorageClass></CreateBucketConfiguration>"
    )
    assert send("PUT", "/xml-other", data=body).status_code == 200
    resource = stocked.request("GET", "/storage/v1/b/xml-other").json()
    assert (resource["location"], resource["storageClass"]) == ("EUROPE-WEST4", "NEARLINE")
    assert texts(send("GET", "/"), "Name") == [BUCKET, "xml-other"]
    assert code(send("PUT", f"/{BUCKET}"))[0] == 409
    assert code(send("PUT", "/No_Bucket!"))[0] == 400
    assert code(send("PUT", "/xml-third", data="<Create")) == (400, "MalformedXML")
    assert send("HEAD", "/xml-other").status_code == 200
    assert send("HEAD", "/xml-nothing").status_code == 404
    assert send("PUT", "/xml-other/o", data=b"x").status_code == 200
    assert code(send("DELETE", "/xml-other"))[0] == 409
    assert send("DELETE", "/xml-other/o").status_code == 204
    assert send("DELETE", "/xml-other").status_code == 204
    assert code(send("DELETE", "/xml-other")) == (404, "NoSuchBucket")
    assert texts(send("GET", "/"), "Name") == [BUCKET]
    assert code(send("GET", f"/{BUCKET}?cors")) == (501, "NotImplemented")


def test_objects_of_a_bucket_in_pages(stocked: Any) -> None:
    def list_objects(query: str) -> Any:
        return stocked.request("GET", f"/{BUCKET}?{query}", headers=HOST)

    for name in ("a", "b/1", "b/2", "c", "d&<"):
        path = f"/{BUCKET}/{name.replace('&<', '%26%3C')}"
        assert stocked.request("PUT", path, data=name.encode(), headers=HOST).ok
    assert texts(list_objects("prefix="), "Key") == ["a", "b/1", "b/2", "c", "d&<"]
    folders = list_objects("delimiter=/")
    assert texts(folders, "Key") == ["a", "c", "d&<"]
    assert texts(folders, "Prefix") == ["", "b/"]
    first = list_objects("max-keys=2")
    assert texts(first, "Key") == ["a", "b/1"]
    (marker,) = texts(first, "NextMarker")
    assert texts(list_objects(f"marker={marker}"), "Key") == ["b/2", "c", "d&<"]
    second = list_objects("list-type=2&max-keys=4")
    assert (texts(second, "KeyCount"), texts(second, "IsTruncated")) == (["4"], ["true"])
    (token,) = texts(second, "NextContinuationToken")
    assert texts(list_objects(f"list-type=2&continuation-token={token}"), "Key") == ["d&<"]
    assert texts(list_objects("list-type=2&start-after=b/2"), "Key") == ["c", "d&<"]


@pytest.mark.parametrize("encoding", [None, "gzip"])
def test_client_uploads_a_file_in_parts(stocked: Any, tmp_path: Path, encoding: str | None) -> None:
    """Each of its requests has the headers of the whole object, whose encoding no part has."""
    from google.cloud.storage import transfer_manager

    path = tmp_path / "file"
    content = random.Random(1).randbytes(11 * MEBIBYTE)  # in three parts, the last one small
    path.write_bytes(gzip.compress(content, 1) if encoding else content)

    blob = stocked.storage().bucket(BUCKET).blob("folder/large", chunk_size=None)
    blob.content_encoding = encoding
    blob.metadata = {"k": "v"}
    blob.content_type = "text/x-test"
    transfer_manager.upload_chunks_concurrently(
        str(path),
        blob,
        chunk_size=5 * MEBIBYTE,
        worker_type=transfer_manager.THREAD,
        checksum="crc32c",
    )
    blob.reload()
    assert (blob.metadata, blob.md5_hash) == ({"k": "v"}, None)
    assert blob.content_type == "text/x-test"
    stored = blob.download_as_bytes(checksum="crc32c", raw_download=True)
    assert stored == path.read_bytes()
    assert blob.download_as_bytes() == content


class Parts:
    """An upload through the XML API."""

    def __init__(self, cloud: Any, name: str = "o") -> None:
        self.cloud = cloud
        self.path = f"/{BUCKET}/{name}"
        (self.id,) = texts(cloud.request("POST", f"{self.path}?uploads", headers=HOST), "UploadId")

    def send(self, verb: str, query: str = "", **more: Any) -> Any:
        path = f"{self.path}?uploadId={self.id}{query}"
        return self.cloud.request(verb, path, headers={**HOST, **more.pop("headers", {})}, **more)

    def put(self, number: int | str, data: bytes, **headers: str) -> str:
        answer = self.send("PUT", f"&partNumber={number}", data=data, headers=headers)
        assert answer.status_code == 200, answer.text
        etag: str = answer.headers["ETag"]
        return etag

    def complete(self, *parts: tuple[int, str]) -> Any:
        body = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
            for number, etag in parts
        )
        text = f"<CompleteMultipartUpload>{body}</CompleteMultipartUpload>"
        return self.send("POST", data=text)


def test_objects_are_copied(stocked: Any) -> None:
    """With the source's metadata, or the request's, if the source is as the request says."""

    def copied(target: str, **headers: str) -> Any:
        prefixed = {f"x-goog-{name.replace('_', '-')}": value for name, value in headers.items()}
        return stocked.request("PUT", f"/{BUCKET}/{target}", headers=prefixed)

    def resource(name: str) -> Any:
        return stocked.request("GET", f"/storage/v1/b/{BUCKET}/o/{name}").json()

    stocked.request("PUT", "/xml-other", headers=HOST)
    source_headers = {"Content-Type": "text/x-a", "Cache-Control": "no-store", "x-goog-meta-k": "v"}
    name = "a%2Fb%20c+d"
    assert stocked.request("PUT", f"/xml-other/{name}", data=b"abc", headers=source_headers).ok
    source = stocked.request("GET", f"/storage/v1/b/xml-other/o/{name}").json()

    answer = copied("same", copy_source=f"/xml-other/{name}")
    assert texts(answer, "ETag") == [f'"{hashlib.md5(b"abc").hexdigest()}"']
    assert texts(answer, "LastModified") == [resource("same")["updated"]]
    assert stocked.request("GET", f"/{BUCKET}/same").content == b"abc"
    same = resource("same")
    assert [same[key] for key in ("contentType", "cacheControl", "metadata", "crc32c")] == [
        *("text/x-a", "no-store", {"k": "v"}, source["crc32c"])
    ]

    copied("new", copy_source=f"xml-other/{name}", metadata_directive="REPLACE", meta_other="w")
    new = resource("new")
    assert (new["contentType"], new["metadata"]) == ("application/octet-stream", {"other": "w"})
    assert "cacheControl" not in new

    right = {"copy_source": f"xml-other/{name}", "copy_source_generation": source["generation"]}
    assert copied("right", **right, copy_source_if_metageneration_match="1").ok
    wrong = {"copy_source": f"xml-other/{name}", "copy_source_if_generation_match": "1"}
    assert code(copied("wrong", **wrong)) == (412, "PreconditionFailed")
    assert code(copied("right", **right, if_generation_match="0"))[0] == 412
    assert code(copied("lost", copy_source="xml-other/none")) == (404, "NoSuchKey")
    assert code(copied("lost", copy_source="xml-none/o")) == (404, "NoSuchBucket")
    assert code(copied("lost", copy_source="xml-other")) == (400, "InvalidArgument")
    assert code(copied("lost", **right, metadata_directive="KEEP")) == (400, "InvalidArgument")
    answer = copied("lost", **right, copy_source_if_match='"abc"')
    assert (answer.status_code, "x-goog-copy-source-if-match" in answer.text) == (501, True)
    assert resource("lost")["error"]["code"] == 404


def test_parts_are_listed_replaced_and_joined_in_order(stocked: Any) -> None:
    upload = Parts(stocked)
    last = upload.put(7, b"end\r")
    upload.put(2, b"a mistake")
    first = upload.put(2, b"x" * 5 * MEBIBYTE)
    listed = upload.send("GET")
    assert texts(listed, "PartNumber") == ["2", "7"]
    assert texts(listed, "Size") == [str(5 * MEBIBYTE), "4"]
    assert texts(listed, "ETag") == [first, last]
    page = upload.send("GET", "&max-parts=1")
    assert (texts(page, "PartNumber"), texts(page, "NextPartNumberMarker")) == (["2"], ["2"])
    assert texts(upload.send("GET", "&part-number-marker=2"), "PartNumber") == ["7"]
    uploads = stocked.request("GET", f"/{BUCKET}?uploads", headers=HOST)
    assert texts(uploads, "UploadId") == [upload.id]
    assert stocked.request("GET", upload.path, headers=HOST).status_code == 404
    assert texts(upload.complete((2, first), (7, last)), "Key") == ["o"]
    read = stocked.request("GET", upload.path, headers=HOST).content
    assert read == b"x" * 5 * MEBIBYTE + b"end\r"
    uploads = stocked.request("GET", f"/{BUCKET}?uploads", headers=HOST)
    assert texts(uploads, "UploadId") == []
    assert code(upload.complete((2, first), (7, last))) == (404, "NoSuchUpload")


def test_invalid_part_lists_are_rejected(stocked: Any) -> None:
    upload = Parts(stocked)
    small, large = upload.put(1, b"small"), upload.put(2, b"x" * 5 * MEBIBYTE)
    assert code(upload.complete((1, small), (2, large))) == (400, "EntityTooSmall")
    assert code(upload.complete((2, large), (1, small))) == (400, "InvalidPartOrder")
    assert code(upload.complete((1, large))) == (400, "InvalidPart")
    assert code(upload.complete((3, small))) == (400, "InvalidPart")
    assert code(upload.complete()) == (400, "MalformedXML")
    assert code(upload.send("POST", data="nothing")) == (400, "MalformedXML")
    for number in ("0", "10001", "x"):
        answer = upload.send("PUT", f"&partNumber={number}", data=b"x")
        assert code(answer) == (400, "InvalidArgument")
    wrong = upload.send(
        "PUT", "&partNumber=3", data=b"x", headers={"X-Goog-Hash": "crc32c=AAAAAA=="}
    )
    assert wrong.status_code == 400
    assert texts(upload.send("GET"), "PartNumber") == ["1", "2"]
    upload.path = f"/{BUCKET}/other"  # an upload belongs to one object
    assert code(upload.send("GET")) == (404, "NoSuchUpload")


def test_aborted_upload_leaves_nothing(stocked: Any) -> None:
    folder = stocked.server.home / "parts"

    upload = Parts(stocked)
    etag = upload.put(1, b"data")
    assert [path.name for path in folder.iterdir()] == [upload.id]
    assert upload.send("DELETE").status_code == 204
    assert list(folder.iterdir()) == []
    for answer in (upload.send("DELETE"), upload.complete((1, etag))):
        assert code(answer) == (404, "NoSuchUpload")


async def test_parts_survive_a_restart(make_cloud: Any) -> None:
    cloud = await make_cloud()
    await asyncio.to_thread(cloud.request, "PUT", f"/{BUCKET}", headers=HOST)
    upload = await asyncio.to_thread(Parts, cloud)
    etag = await asyncio.to_thread(upload.put, 1, b"data")
    await cloud.server.close()
    upload.cloud = await make_cloud()
    answer = await asyncio.to_thread(upload.complete, (1, etag))
    assert answer.status_code == 200
    path = f"/storage/v1/b/{BUCKET}/o/o?alt=media"
    assert (await asyncio.to_thread(upload.cloud.request, "GET", path)).content == b"data"
