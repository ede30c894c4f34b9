"""Customer-supplied encryption keys, and names of Cloud KMS keys.

Expectations were measured against Cloud Storage by kmoneil/zig-gcp: its docs/storage/encryption.md.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from typing import Any

import pytest
from google.api_core.exceptions import BadRequest

BUCKET = "keys-bucket"
KEY, OTHER_KEY = b"k" * 32, b"o" * 32
OBJECTS = f"/storage/v1/b/{BUCKET}/o"
UPLOAD = f"/upload/storage/v1/b/{BUCKET}/o"
KMS_KEY = "projects/p/locations/europe-west4/keyRings/r/cryptoKeys/k"
OTHER_KMS_KEY = f"{KMS_KEY}2"
NO_KEY = "The target object is encrypted by a customer-supplied encryption key."
WRONG_KEY = "The provided encryption key is incorrect."
UNEXPECTED_KEY = "The target object is not encrypted by a customer-supplied encryption key."


def digest(key: bytes) -> str:
    return base64.b64encode(hashlib.sha256(key).digest()).decode()


def headers(key: bytes, prefix: str = "x-goog-encryption-") -> dict[str, str]:
    return {
        f"{prefix}algorithm": "AES256",
        f"{prefix}key": base64.b64encode(key).decode(),
        f"{prefix}key-sha256": digest(key),
    }


@pytest.fixture
async def bucket(cloud: Any) -> Any:
    create = cloud.storage().create_bucket
    return await asyncio.to_thread(create, BUCKET, location="europe-west4")


@pytest.mark.parametrize("chunk_size", [None, 256 * 1024])
def test_object_is_readable_only_with_its_key(
    cloud: Any, bucket: Any, chunk_size: int | None
) -> None:
    data = b"secret" * 100_000

    bucket.blob("o", encryption_key=KEY, chunk_size=chunk_size).upload_from_string(data)
    for key, message in ((None, NO_KEY), (OTHER_KEY, WRONG_KEY)):
        with pytest.raises(BadRequest, match=message):
            bucket.blob("o", encryption_key=key).download_as_bytes()
    assert bucket.blob("o", encryption_key=KEY).download_as_bytes() == data
    bucket.blob("plain").upload_from_string(b"x")
    with pytest.raises(BadRequest, match=UNEXPECTED_KEY):
        bucket.blob("plain", encryption_key=KEY).download_as_bytes()


def test_checksums_are_visible_only_with_the_key(cloud: Any, bucket: Any) -> None:
    def get(name: str, **more: Any) -> Any:
        return cloud.request("GET", f"{OBJECTS}/{name}", **more)

    created = cloud.request("POST", f"{UPLOAD}?name=o", data=b"x", headers=headers(KEY)).json()
    resource = get("o").json()
    expected = {"encryptionAlgorithm": "AES256", "keySha256": digest(KEY)}
    assert resource["customerEncryption"] == expected
    assert created == resource | {"crc32c": created["crc32c"], "md5Hash": created["md5Hash"]}
    assert "crc32c" not in resource and "md5Hash" not in resource
    assert get("o", headers=headers(KEY)).json() == created
    wrong = get("o", headers=headers(OTHER_KEY))
    assert (wrong.status_code, wrong.json()["error"]["errors"][0]["reason"]) == (
        400,
        "customerEncryptionKeyIsIncorrect",
    )
    patched = cloud.request(
        "PATCH", f"{OBJECTS}/o", json={"metadata": {"a": "b"}}, headers=headers(KEY)
    )
    assert patched.json()["crc32c"] == created["crc32c"]
    (item,) = cloud.request("GET", OBJECTS).json()["items"]
    assert "crc32c" not in item
    moved = cloud.request("POST", f"{OBJECTS}/o/moveTo/o/p").json()  # needs no key
    assert "crc32c" not in moved
    assert get("p", headers=headers(KEY)).json()["crc32c"] == created["crc32c"]
    assert cloud.request("DELETE", f"{OBJECTS}/p").status_code == 204


def test_copies_take_the_key_of_their_source_and_the_one_of_their_own(
    cloud: Any, bucket: Any
) -> None:
    source_headers = headers(KEY, "x-goog-copy-source-encryption-")

    bucket.blob("o", encryption_key=KEY).upload_from_string(b"x")
    with pytest.raises(BadRequest, match=NO_KEY):
        bucket.blob("copy").rewrite(bucket.blob("o"))
    rotated = bucket.blob("o", encryption_key=OTHER_KEY)
    rotated.rewrite(bucket.blob("o", encryption_key=KEY))
    assert rotated.download_as_bytes() == b"x"
    with pytest.raises(BadRequest, match=WRONG_KEY):
        bucket.blob("o", encryption_key=KEY).download_as_bytes()
    rotated.rewrite(bucket.blob("o", encryption_key=OTHER_KEY))
    path = f"{OBJECTS}/o/copyTo/b/{BUCKET}/o/plain"
    answer = cloud.request("POST", path, headers=source_headers)
    assert answer.json()["error"]["message"] == WRONG_KEY
    source = bucket.blob("o", encryption_key=OTHER_KEY)
    bucket.blob("plain").rewrite(source)
    assert bucket.blob("plain").download_as_bytes() == b"x"
    with pytest.raises(BadRequest, match=UNEXPECTED_KEY):
        bucket.blob("copy").rewrite(bucket.blob("plain", encryption_key=KEY))


def test_composed_object_and_its_sources_have_one_key(cloud: Any, bucket: Any) -> None:
    def compose(**more: Any) -> Any:
        body = {"sourceObjects": [{"name": "a"}, {"name": "b"}]}
        return cloud.request("POST", f"{OBJECTS}/o/compose", json=body, **more).json()

    for name in ("a", "b"):
        bucket.blob(name, encryption_key=KEY).upload_from_string(name.encode())
    assert compose()["error"]["message"] == NO_KEY
    assert compose(headers=headers(OTHER_KEY))["error"]["message"] == WRONG_KEY
    assert compose(headers=headers(KEY))["crc32c"]
    assert bucket.blob("o", encryption_key=KEY).download_as_bytes() == b"ab"
    with pytest.raises(BadRequest, match=NO_KEY):
        bucket.blob("o").download_as_bytes()


def test_xml_objects_have_keys_too(cloud: Any, bucket: Any) -> None:
    path = f"/{BUCKET}/o"

    def error(answer: Any) -> tuple[int, str, str]:
        code, _, rest = answer.text.partition("<Code>")[2].partition("</Code>")
        return answer.status_code, code, rest.partition("<Details>")[2].partition("</Details>")[0]

    assert cloud.request("PUT", path, data=b"x", headers=headers(KEY)).ok
    missing = (400, "ResourceIsEncryptedWithCustomerEncryptionKey", NO_KEY)
    assert error(cloud.request("GET", path)) == missing
    assert cloud.request("HEAD", path).status_code == 400
    answer = cloud.request("GET", path, headers=headers(KEY))
    assert answer.content == b"x"
    assert answer.headers["X-Goog-Encryption-Key-Sha256"] == digest(KEY)
    assert answer.headers["X-Goog-Encryption-Algorithm"] == "AES256"

    answer = cloud.request("POST", f"{path}?uploads", headers=headers(KEY))
    upload = answer.text.partition("<UploadId>")[2].partition("<")[0]
    part = f"{path}?uploadId={upload}&partNumber=1"
    text = "The requested multipart upload is encrypted by a customer-supplied encryption key."
    assert error(cloud.request("PUT", part, data=b"y")) == (*missing[:2], text)
    tag = cloud.request("PUT", part, data=b"y", headers=headers(KEY)).headers["ETag"]
    body = f"<Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part>"
    body = f"<CompleteMultipartUpload>{body}</CompleteMultipartUpload>"
    end = f"{path}?uploadId={upload}"
    wrong = error(cloud.request("POST", end, data=body, headers=headers(OTHER_KEY)))
    assert wrong[:2] == (400, "CustomerEncryptionKeyIsIncorrect")
    answer = cloud.request("POST", end, data=body, headers=headers(KEY))
    assert answer.ok and "x-goog-hash" not in answer.headers
    assert cloud.request("GET", path).status_code == 400
    assert cloud.request("GET", path, headers=headers(KEY)).content == b"y"


@pytest.mark.parametrize(
    "change",
    [
        {"algorithm": "AES128"},
        {"algorithm": ""},
        {"key": "%"},
        {"key": "é"},
        {"key": base64.b64encode(b"short").decode(), "key-sha256": digest(b"short")},
        {"key-sha256": digest(OTHER_KEY)},
        {"key-sha256": ""},
    ],
)
def test_malformed_keys_are_rejected(cloud: Any, bucket: Any, change: dict[str, str]) -> None:
    malformed = {**headers(KEY), **{f"x-goog-encryption-{k}": v for k, v in change.items()}}

    answer = cloud.request("POST", f"{UPLOAD}?name=o", data=b"x", headers=malformed)
    assert answer.status_code == 400
    assert "SHA256 hash of the encryption key" in answer.json()["error"]["message"]
    assert cloud.request("PUT", f"/{BUCKET}/o", data=b"x", headers=malformed).status_code == 400
    assert cloud.request("GET", f"{OBJECTS}/o").status_code == 404


def test_kms_keys_are_named_by_writes_or_by_the_bucket(cloud: Any, bucket: Any) -> None:
    def key_of(name: str) -> Any:
        blob = bucket.get_blob(name)
        return blob.kms_key_name

    client_blob = bucket.blob("o", kms_key_name=KMS_KEY)
    client_blob.upload_from_string(b"x")
    assert key_of("o") == f"{KMS_KEY}/cryptoKeyVersions/1"
    assert bucket.get_blob("o").crc32c
    (item,) = cloud.request("GET", OBJECTS).json()["items"]
    assert "crc32c" not in item
    assert bucket.blob("o").download_as_bytes() == b"x"
    bucket.copy_blob(bucket.blob("o"), bucket, "copy")
    assert key_of("copy") is None  # never the source's
    bucket.default_kms_key_name = OTHER_KMS_KEY
    bucket.patch()
    bucket.reload()
    assert bucket.default_kms_key_name == OTHER_KMS_KEY
    bucket.copy_blob(bucket.blob("o"), bucket, "copy")
    assert key_of("copy") == f"{OTHER_KMS_KEY}/cryptoKeyVersions/1"
    bucket.blob("to", kms_key_name=KMS_KEY).rewrite(bucket.blob("copy"))
    assert key_of("to") == f"{KMS_KEY}/cryptoKeyVersions/1"
    bucket.blob("whole", kms_key_name=KMS_KEY).compose([bucket.blob("o"), bucket.blob("to")])
    name = {"x-goog-encryption-kms-key-name": KMS_KEY}
    assert cloud.request("PUT", f"/{BUCKET}/xml", data=b"x", headers=name).ok
    assert key_of("xml") == f"{KMS_KEY}/cryptoKeyVersions/1"
    cloud.request("POST", f"{UPLOAD}?name=csek", data=b"x", headers=headers(KEY))
    assert key_of("csek") is None


@pytest.mark.parametrize(
    ("name", "more", "status", "message"),
    [
        (f"{KMS_KEY}/cryptoKeyVersions/1", {}, 400, "Malformed Cloud KMS crypto key"),
        ("my-key", {}, 400, "Malformed Cloud KMS crypto key"),
        (KMS_KEY.replace("europe-west4", "us"), {}, 400, "Cloud KMS key location not allowed."),
        (KMS_KEY, headers(KEY), 409, "Cannot provide both a Cloud KMS key and a csk encoded"),
    ],
)
def test_unusable_kms_keys_are_rejected(
    cloud: Any, bucket: Any, name: str, more: dict[str, str], status: int, message: str
) -> None:
    for kind in ("media", "resumable"):
        answer = cloud.request(
            "POST",
            UPLOAD,
            params={"uploadType": kind, "name": "o", "kmsKeyName": name},
            data=b"{}",
            headers=more,
        )
        assert answer.status_code == status
        assert message in answer.json()["error"]["message"]
    if not more:
        body = {"encryption": {"defaultKmsKeyName": name}}
        answer = cloud.request("PATCH", f"/storage/v1/b/{BUCKET}", json=body)
        assert (answer.status_code, answer.json()["error"]["message"]) == (status, message)
