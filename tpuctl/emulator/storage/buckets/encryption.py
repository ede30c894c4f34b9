"""Encryption keys of objects: customer-supplied ones, and the names of Cloud KMS keys.

Behavior and messages were measured against Cloud Storage by kmoneil/zig-gcp in September 2026 (its
docs/storage/encryption.md and src/storage/fake_multipart.zig). The bytes are stored as they are:
the key's hash alone decides who can read them; for a Cloud KMS key, whether the project's service
agent may use it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from tpuctl.emulator.iam.crypto_keys import KEY, CryptoKeys, UnusableKey
from tpuctl.emulator.state.errors import ApiError, invalid
from tpuctl.emulator.state.projects import Project
from tpuctl.emulator.storage.buckets.bucket_settings import FULLY_RESTRICTED, Bucket

FIELDS = ("customerEncryption", "kmsKeyName")  # of an object's body
_TARGET = "x-goog-encryption-"
SOURCE = "x-goog-copy-source-encryption-"
_HASHES = ("crc32c", "md5Hash")
_MALFORMED = (
    "Missing a SHA256 hash of the encryption key, or it is not base64 encoded, or it does not "
    "match the encryption key."
)
_KMS_LOCATIONS = {"eu": "europe"}  # cloud.google.com/kms/docs/locations; the others have one name


def key_hash(headers: Mapping[str, str], prefix: str = _TARGET) -> str:
    """The SHA-256 of the customer-supplied key in a request's headers; "" for none."""
    texts = [headers.get(f"{prefix}{name}", "") for name in ("algorithm", "key", "key-sha256")]
    algorithm, key, claimed = texts
    if not any(texts):
        return ""
    try:
        decoded = base64.b64decode(key, validate=True)
    except ValueError as error:
        raise invalid(_MALFORMED) from error
    digest = base64.b64encode(hashlib.sha256(decoded).digest()).decode()
    if algorithm != "AES256" or len(decoded) != 32 or claimed != digest:
        raise invalid(_MALFORMED)
    return digest


def key_of(body: Mapping[str, Any]) -> str:
    """The SHA-256 of an object's customer-supplied key; "" for none."""
    return str((body.get("customerEncryption") or {}).get("keySha256", ""))


def require_key(
    body: Mapping[str, Any], digest: str, *, is_optional: bool = False, noun: str = "target object"
) -> None:
    """Raise ApiError unless the request's key is the one of the object, or neither has one.

    With `is_optional` the key may be omitted: metadata can be read without it.
    """
    expected = key_of(body)
    if digest == expected or (is_optional and not digest):
        return
    if not digest:
        text = f"The {noun} is encrypted by a customer-supplied encryption key."
        raise invalid(text, reason="resourceIsEncryptedWithCustomerEncryptionKey")
    if not expected:
        text = f"The {noun} is not encrypted by a customer-supplied encryption key."
        raise invalid(text, reason="resourceNotEncryptedWithCustomerEncryptionKey")
    text = "The provided encryption key is incorrect."
    raise invalid(text, reason="customerEncryptionKeyIsIncorrect")


def encryption_fields(
    headers: Mapping[str, str], kms_key: str, bucket: Bucket, keys: CryptoKeys, project: Project
) -> dict[str, Any]:
    """The fields of a new object that is written with the request's key, or with the Cloud KMS key
    that the request or else the bucket names."""
    digest = key_hash(headers)
    kms_key = kms_key or headers.get(f"{_TARGET}kms-key-name", "")
    if digest and kms_key:
        text = "Cannot provide both a Cloud KMS key and a csk encoded encryption scheme."
        raise ApiError("ALREADY_EXISTS", text, reason="conflict")
    if digest:
        _check_enforcement(bucket, "customerSupplied")
        return {"customerEncryption": {"encryptionAlgorithm": "AES256", "keySha256": digest}}
    kms_key = kms_key or default_key(bucket)
    _check_enforcement(bucket, "customerManaged" if kms_key else "googleManaged")
    version = usable_version(kms_key, bucket, keys, project)
    return {"kmsKeyName": version} if version else {}


def _check_enforcement(bucket: Bucket, kind: str) -> None:
    """Raise ApiError if new objects of a bucket must not have this kind of encryption.

    The message is a guess.
    """
    config = (bucket.get("encryption") or {}).get(f"{kind}EncryptionEnforcementConfig") or {}
    if config.get("restrictionMode") == FULLY_RESTRICTED:
        raise ApiError(
            "FAILED_PRECONDITION",
            f"Bucket '{bucket['name']}' does not allow new objects with {kind} encryption.",
            reason="conditionNotMet",
            http=412,
        )


def default_key(bucket: Bucket) -> str:
    """The Cloud KMS key of a bucket's new objects; "" for none."""
    return str((bucket.get("encryption") or {}).get("defaultKmsKeyName") or "")


def usable_version(name: str, bucket: Bucket, keys: CryptoKeys, project: Project) -> str:
    """The version of a Cloud KMS key that a bucket of the project encrypts with; "" for no key.

    Raises ApiError if it cannot: cloud.google.com/storage/docs/json_api/v1/status-codes, and for
    the agent's permission googleapis/nodejs-storage#1254.
    """
    constraint = keys.violation(project, "storage.googleapis.com", name)
    if constraint:
        text = f"Request violates constraint 'constraints/{constraint}'"
        where = ("header", "If-Match")
        raise ApiError(
            "FAILED_PRECONDITION", text, reason="conditionNotMet", location=where, http=412
        )
    if not name:
        return ""
    match = KEY.fullmatch(name)
    if match is None:
        raise invalid("Malformed Cloud KMS crypto key")
    location = str(bucket["location"]).lower()
    if match["location"] != _KMS_LOCATIONS.get(location, location):
        text = "Cloud KMS key location not allowed."
        raise invalid(text, reason="cloudKmsKeyLocationNotAllowed")
    try:
        return keys.usable_version(name, agent_of(project))
    except UnusableKey as problem:
        raise _unusable(problem) from problem


def check_readable(version: str, keys: CryptoKeys, project: Project) -> None:
    """Raise ApiError if a project's objects cannot be decrypted with a version of a key."""
    try:
        keys.check_version(version, agent_of(project))
    except UnusableKey as problem:
        raise _unusable(problem) from problem


def agent_of(project: Project) -> str:
    """The email of Cloud Storage's service agent in a project."""
    return f"service-{project['number']}@gs-project-accounts.iam.gserviceaccount.com"


def _unusable(problem: UnusableKey) -> ApiError:
    if problem.reason == "denied":
        text = (
            "Permission denied on Cloud KMS key. Please ensure that your Cloud Storage service "
            "account has been authorized to use this key."
        )
        return ApiError("PERMISSION_DENIED", text, reason="forbidden")
    text = "Cloud KMS key is disabled, destroyed, or scheduled to be destroyed."
    return invalid(text, reason="cloudKmsDisabledKey")


def visible_body(body: Mapping[str, Any], digest: str, *, is_listed: bool) -> dict[str, Any]:
    """The body without what may only be seen with the key: the checksums."""
    is_hidden = (key_of(body) and not digest) or (is_listed and not body.keys().isdisjoint(FIELDS))
    return {key: value for key, value in body.items() if not (is_hidden and key in _HASHES)}


def encryption_headers(body: Mapping[str, Any]) -> dict[str, str]:
    """The response headers of the object's data."""
    if customer := body.get("customerEncryption"):
        return {
            "X-Goog-Encryption-Algorithm": customer["encryptionAlgorithm"],
            "X-Goog-Encryption-Key-Sha256": customer["keySha256"],
        }
    if kms_key := body.get("kmsKeyName"):
        return {"X-Goog-Encryption-Kms-Key-Name": str(kms_key)}
    return {}
