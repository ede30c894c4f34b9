"""Object versions, beyond the table of cases: files, restarts and size limits."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tpuctl.emulator.storage.objects import versions

BUCKET = "versions-bucket"
OBJECT = f"/storage/v1/b/{BUCKET}/o/o"
UPLOAD = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name=o"
DAY = 24 * 3600


def make(cloud: Any, **settings: Any) -> None:
    body = {"name": BUCKET, **settings}
    answer = cloud.request("POST", "/storage/v1/b?project=local-project", json=body)
    assert answer.status_code == 200, answer.text


def write(cloud: Any, data: bytes) -> str:
    answer = cloud.request("POST", UPLOAD, data=data)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["generation"])


def listed(cloud: Any, kind: str) -> list[str]:
    answer = cloud.request("GET", f"/storage/v1/b/{BUCKET}/o?{kind}=true").json()
    return [each["generation"] for each in answer.get("items", [])]


def files(cloud: Any) -> int:
    return sum(path.is_file() for path in (cloud.server.home / "objects").rglob("*"))


async def test_versions_survive_restart(make_cloud: Any) -> None:
    cloud = await make_cloud()

    def fill() -> list[str]:
        make(cloud, versioning={"enabled": True})
        generations = [write(cloud, data) for data in (b"1", b"2", b"3")]
        assert cloud.request("DELETE", f"{OBJECT}?generation={generations[0]}").status_code == 204
        return generations

    written = await asyncio.to_thread(fill)
    await cloud.server.close()
    again = await make_cloud()

    def look() -> None:
        assert listed(again, "versions") == written[1:]
        assert listed(again, "softDeleted") == written[:1]
        old = again.request("GET", f"{OBJECT}?generation={written[1]}&alt=media")
        assert old.content == b"2"
        back = again.request("POST", f"{OBJECT}/restore?generation={written[0]}")
        assert back.status_code == 200
        assert again.request("GET", f"{OBJECT}?alt=media").content == b"1"

    await asyncio.to_thread(look)
    assert files(again) == 4


async def test_soft_deleted_versions_expire(make_cloud: Any) -> None:
    cloud = await make_cloud()

    def fill() -> None:
        make(cloud)
        write(cloud, b"1")
        cloud.request("DELETE", OBJECT)

    await asyncio.to_thread(fill)
    assert len(await asyncio.to_thread(listed, cloud, "softDeleted")) == 1
    assert files(cloud) == 1
    cloud.server.store.run("UPDATE versions SET until=? WHERE until>0", time.time() - 1)
    assert await asyncio.to_thread(listed, cloud, "softDeleted") == []
    await cloud.server.close()
    assert files(await make_cloud()) == 0


def test_soft_deleted_bytes_are_limited(cloud: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are deleted, so that a week of checkpoints does not fill the disk."""
    monkeypatch.setattr(versions, "MAX_SOFT_DELETED_BYTES", 100)

    make(cloud)
    generations = [write(cloud, bytes([index]) * 40) for index in range(4)]
    assert listed(cloud, "softDeleted") == generations[1:3]
    write(cloud, b"x" * 200)
    assert listed(cloud, "softDeleted") == generations[2:4]
    write(cloud, b"")  # the replaced version is larger than the limit
    assert listed(cloud, "softDeleted") == generations[2:4]
    assert files(cloud) == 3


def test_deleted_bucket_has_no_soft_deleted_versions(cloud: Any) -> None:
    make(cloud)
    write(cloud, b"1")
    cloud.request("DELETE", OBJECT)
    assert cloud.request("DELETE", f"/storage/v1/b/{BUCKET}").status_code == 204
    assert files(cloud) == 0


def test_rejected_request_changes_nothing(cloud: Any) -> None:
    make(cloud, softDeletePolicy={"retentionDurationSeconds": "0"})
    generation = write(cloud, b"1")
    hold = {"temporaryHold": True}
    assert cloud.request("PATCH", OBJECT, json=hold).status_code == 200
    refused = cloud.request("POST", UPLOAD, data=b"2")
    assert refused.status_code == 403, refused.text
    assert cloud.request("GET", f"{OBJECT}?alt=media").content == b"1"
    assert cloud.request("GET", OBJECT).json()["generation"] == generation
    assert files(cloud) == 1


def test_xml_api_reports_retention(cloud: Any) -> None:
    make(cloud, retentionPolicy={"retentionPeriod": str(DAY)})
    write(cloud, b"1")
    host = {"Host": "storage.googleapis.com"}
    for verb in ("PUT", "DELETE"):
        answer = cloud.request(verb, f"/{BUCKET}/o", headers=host)
        assert answer.status_code == 403
        assert "<Code>RetentionPolicyNotMet</Code>" in answer.text
        assert f"<Details>Object '{BUCKET}/o' is subject to" in answer.text
    cloud.request("PATCH", OBJECT, json={"temporaryHold": True})
    answer = cloud.request("DELETE", f"/{BUCKET}/o", headers=host)
    assert "<Code>ObjectUnderActiveHold</Code>" in answer.text


def test_objects_in_pages_and_folders(cloud: Any) -> None:
    """More than one batch of rows."""
    names = [f"{folder}/{index:03}" for folder in "ab" for index in range(300)]

    make(cloud)
    bucket = cloud.storage().bucket(BUCKET)
    for name in names:
        bucket.blob(name).upload_from_string(b"")
    client = bucket.client
    assert [blob.name for blob in client.list_blobs(BUCKET, page_size=250)] == names
    listing = client.list_blobs(BUCKET, delimiter="/")
    assert list(listing) == []
    assert listing.prefixes == {"a/", "b/"}
    assert [blob.name for blob in client.list_blobs(BUCKET, prefix="b/29")] == names[-10:]
    late = [blob.name for blob in client.list_blobs(BUCKET, start_offset="a/299")]
    assert late == names[299:]


def test_invalid_field_selectors(cloud: Any) -> None:
    make(cloud)
    for fields in ("items(", "(", "items)", "a,,b", "/"):
        answer = cloud.request("GET", f"/storage/v1/b/{BUCKET}/o", params={"fields": fields})
        assert answer.status_code == 400, fields
    answer = cloud.request("GET", f"/storage/v1/b/{BUCKET}", params={"fields": "*"})
    assert answer.json()["name"] == BUCKET
