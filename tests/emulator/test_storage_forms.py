"""Uploads by forms with policy documents that Google's client signs."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.emulator.test_storage_signed_urls import BUCKET, Signer
from tests.support.account_keys import without_lookups

pytestmark = pytest.mark.malformed  # forms are in no API description
URL = f"https://storage.googleapis.com/{BUCKET}/"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    without_lookups(monkeypatch)


def v2(signer: Signer, conditions: list[Any], **fields: str) -> dict[str, str]:
    """The fields of a V2 form: cloud.google.com/storage/docs/xml-api/post-object-v2."""
    expiration = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()
    document = json.dumps({"expiration": expiration, "conditions": conditions}).encode()
    policy = base64.b64encode(document)
    credentials = signer.storage._credentials
    signature = base64.b64encode(credentials.sign_bytes(policy)).decode()
    email = credentials.service_account_email
    signed = {"GoogleAccessId": email, "policy": policy.decode(), "signature": signature}
    return {**fields, **signed}


def send(signer: Signer, fields: dict[str, str], data: bytes = b"data", url: str = URL) -> Any:
    files = {"file": ("a.txt", data)}
    return signer.send("POST", url, data=fields, files=files, allow_redirects=False)


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, ElementTree.fromstring(answer.content).findtext("Code") or ""


def test_forms_of_v4(cloud: Any) -> None:
    signer = Signer(cloud)

    def policy(name: str, conditions: Any = None, **more: Any) -> Any:
        client, soon = signer.storage, timedelta(minutes=1)
        more.setdefault("fields", {"x-goog-meta-a": "b", "content-type": "text/x-test"})
        return client.generate_signed_post_policy_v4(
            BUCKET, name, expiration=soon, conditions=conditions, **more
        )

    form = policy("new", [["content-length-range", 0, 10]])
    for each in (URL, f"https://{BUCKET}.storage.googleapis.com/"):
        answer = send(signer, form["fields"], url=each)
        assert (answer.status_code, answer.content) == (204, b"")
    blob = signer.bucket.get_blob("new")
    assert (blob.metadata, blob.content_type) == ({"a": "b"}, "text/x-test")
    assert blob.download_as_bytes() == b"data"
    assert code(send(signer, form["fields"], b"a" * 11)) == (400, "EntityTooLarge")
    small = policy("new", [["content-length-range", 5, 10]])["fields"]
    assert code(send(signer, small)) == (400, "EntityTooSmall")
    for change in ({"key": "other"}, {"x-goog-meta-c": "d"}):
        assert code(send(signer, {**form["fields"], **change})) == (403, "AccessDenied")
    assert send(signer, {**form["fields"], "x-ignore-c": "d"}).status_code == 204
    wrong = {**form["fields"], "x-goog-signature": "00" * 256}
    assert code(send(signer, wrong)) == (403, "SignatureDoesNotMatch")
    assert code(send(signer, {"key": "new"})) == (501, "NotImplemented")
    created = send(signer, policy("new", fields={"success_action_status": "201"})["fields"])
    assert (created.status_code, b"<Key>new</Key>" in created.content) == (201, True)
    there = send(signer, policy("new", fields={"success_action_redirect": "http://a/"})["fields"])
    assert (there.status_code, there.headers["Location"]) == (303, "http://a/")
    # google-cloud-storage, tests/system/test__signing.py
    unknown = policy("new", fields={"x-goog-a": "b"})["fields"]
    assert code(send(signer, unknown)) == (400, "InvalidArgument")


def test_forms_of_v2(cloud: Any) -> None:
    signer = Signer(cloud)
    conditions = [["starts-with", "$key", "up/"], {"bucket": BUCKET}, ["eq", "$acl", "public-read"]]
    fields = v2(signer, conditions, key="up/${filename}", acl="public-read")
    assert send(signer, fields).status_code == 204
    blob = signer.bucket.get_blob("up/a.txt")
    assert {"entity": "allUsers", "role": "READER"} in list(blob.acl)
    assert code(send(signer, {**fields, "key": "down"})) == (403, "AccessDenied")
    assert code(send(signer, {**fields, "signature": "AAAA"})) == (403, "SignatureDoesNotMatch")
    assert code(send(signer, {**fields, "policy": "?"})) == (400, "MalformedSecurityHeader")
