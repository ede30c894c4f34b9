"""Signed URLs of Cloud Storage, as Google's client makes them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import re
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from xml.etree import ElementTree

import pytest
import requests
from google.cloud.storage import _signing

from tests.support.account_keys import Robot, allow_keys, without_lookups
from tests.support.callers import Member, grant, revoke
from tests.support.locations import PROJECT_NAME

BUCKET = "signed-bucket"
HOST = "storage.googleapis.com"
VERSIONS = ("v2", "v4")


class Signer:
    """A service account with a bucket, and a client that signs with its key."""

    def __init__(self, cloud: Any) -> None:
        allow_keys(cloud)
        self.cloud = cloud
        self.robot = Robot(cloud, "a-signer", "roles/storage.admin")
        self.key = self.robot.make_key()
        self.storage = self.robot.storage(self.key)
        self.bucket = self.storage.create_bucket(BUCKET)
        self.bucket.blob("o").upload_from_string(b"data", content_type="text/x-test")

    def url(self, name: str = "o", version: str = "v4", **fields: Any) -> str:
        """A URL at Google's host, valid for a minute."""
        place = self.bucket.blob(name) if name else self.bucket
        values = {"expiration": timedelta(minutes=1), **fields}
        values.setdefault("api_access_endpoint", f"https://{HOST}")
        return str(place.generate_signed_url(version=version, **values))

    def send(
        self, verb: str, url: str, headers: Mapping[str, str] | None = None, **more: Any
    ) -> Any:
        """Send a request for a URL at Google's host to the local cloud, without credentials."""
        parts = urlsplit(url)
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        with requests.Session() as session:
            session.trust_env = False
            return session.request(
                verb,
                self.cloud.url + path,
                headers={"Host": parts.netloc, **(headers or {})},
                timeout=60,
                **more,
            )


@pytest.fixture
async def signer(cloud: Any) -> Signer:
    return await asyncio.to_thread(Signer, cloud)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    without_lookups(monkeypatch)


def error(answer: Any) -> dict[str, str]:
    """The elements of an error document."""
    assert not answer.ok, answer.text
    assert answer.headers["Content-Type"].startswith("application/xml"), answer.text
    return {element.tag: element.text or "" for element in ElementTree.fromstring(answer.content)}


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, error(answer)["Code"]


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_are_read_written_and_deleted(cloud: Any, version: str) -> None:
    signer = Signer(cloud)

    def send(verb: str, name: str, **more: Any) -> Any:
        return signer.send(verb, signer.url(name, version, method=verb), **more)

    assert send("GET", "o").content == b"data"
    head = send("HEAD", "o")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["Content-Type"] == "text/x-test"
    for name in ("new", "Café & co/ü+%41~.txt"):
        assert send("PUT", name, data=name.encode()).status_code == 200
        assert send("GET", name).content == name.encode()
    assert signer.bucket.blob("Café & co/ü+%41~.txt").exists()
    deleted = send("DELETE", "new")
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert code(send("GET", "new")) == (404, "NoSuchKey")
    listed = signer.send("GET", signer.url("", version))
    assert listed.status_code == 200 and b"<Key>o</Key>" in listed.content
    partial = send("GET", "o", headers={"Range": "bytes=1-2"})
    assert (partial.status_code, partial.content) == (206, b"at")


@pytest.mark.parametrize("version", VERSIONS)
def test_virtual_hosted_and_other_endpoints(cloud: Any, version: str) -> None:
    signer = Signer(cloud)
    assert signer.send("GET", signer.url("o", api_access_endpoint=cloud.url)).content == b"data"
    hosted = signer.url("o", "v4", virtual_hosted_style=True)
    assert urlsplit(hosted).netloc == f"{BUCKET}.{HOST}"
    assert signer.send("GET", hosted).content == b"data"
    # V2 signs the bucket's name there too, which the Python client leaves to its callers.
    expires = int(time.time()) + 60
    signed = _signing.get_signed_query_params_v2(
        signer.storage._credentials, expires, f"GET\n\n\n{expires}\n/{BUCKET}/o"
    )
    query = requests.models.RequestEncodingMixin._encode_params(signed)
    assert signer.send("GET", f"https://{BUCKET}.{HOST}/o?{query}").content == b"data"


@pytest.mark.parametrize("version", VERSIONS)
def test_resumable_upload_starts_with_a_signed_url(cloud: Any, version: str) -> None:
    signer = Signer(cloud)
    start = {"x-goog-resumable": "start", "Content-Type": "text/x-new"}
    url = signer.url("large", version, method="RESUMABLE", content_type="text/x-new")
    begun = signer.send("POST", url, headers=start)
    assert (begun.status_code, begun.content) == (201, b"")
    location = begun.headers["Location"]
    assert urlsplit(location).netloc == HOST and "ignature" not in location
    assert code(signer.send("POST", url, headers={"Content-Type": "text/x-new"}))[0] >= 400
    other = location.replace("/large?", "/o?")
    assert signer.send("PUT", other, data=b"stolen").status_code == 401
    assert signer.send("GET", location).status_code == 401
    first = signer.send("PUT", location, data=b"x" * 10, headers={"Content-Range": "bytes 0-*/15"})
    assert (first.status_code, first.headers["Range"]) == (308, "bytes=0-9")
    status = signer.send("PUT", location, headers={"Content-Range": "bytes */15"})
    assert (status.status_code, status.headers["Range"]) == (308, "bytes=0-9")
    last = signer.send("PUT", location, data=b"y" * 5, headers={"Content-Range": "bytes 10-14/15"})
    assert (last.status_code, last.content) == (200, b"")
    blob = signer.bucket.get_blob("large")
    assert last.headers["X-Goog-Generation"] == str(blob.generation)
    assert (blob.download_as_bytes(), blob.content_type) == (b"x" * 10 + b"y" * 5, "text/x-new")
    cancelled = signer.send("POST", url, headers=start).headers["Location"]
    assert signer.send("DELETE", cancelled).status_code == 499
    assert signer.send("PUT", cancelled, data=b"x").status_code == 401
    assert signer.bucket.blob("o").download_as_bytes() == b"data"


def test_upload_sessions_of_the_json_api_need_no_other_credentials(cloud: Any) -> None:
    signer = Signer(cloud)
    url = signer.bucket.blob("by-session").create_resumable_upload_session(size=3)
    assert requests.put(url, data=b"abc", timeout=60).json()["name"] == "by-session"
    unknown = re.sub("upload_id=[^&]+", "upload_id=guessed", url)
    assert requests.put(unknown, data=b"abc", timeout=60).status_code == 401
    as_read = url.replace("/upload/storage/v1/b/", "/storage/v1/b/")
    assert requests.put(as_read, data=b"{}", timeout=60).status_code == 401


@pytest.mark.parametrize("version", VERSIONS)
def test_signed_headers_must_be_sent(signer: Signer, version: str) -> None:
    headers = {"x-goog-meta-k": "some   value"}
    fields = {"method": "PUT", "content_type": "text/plain", "headers": headers}
    url = signer.url("h", version, **fields)
    required = {"Content-Type": "text/plain", "x-goog-meta-k": "some value"}
    assert signer.send("PUT", url, headers=required, data=b"x").status_code == 200
    assert signer.bucket.get_blob("h").metadata == {"k": "some value"}
    changed = {**required, "x-goog-meta-k": "another"}
    answer = signer.send("PUT", url, headers=changed, data=b"y")
    assert code(answer) == (403, "SignatureDoesNotMatch")
    missing = signer.send("PUT", url, headers={"Content-Type": "text/plain"}, data=b"y")
    if version == "v4":
        assert code(missing) == (400, "MalformedSecurityHeader")
        assert error(missing)["ParameterName"] == "x-goog-meta-k"
    else:
        assert code(missing) == (403, "SignatureDoesNotMatch")
    assert signer.bucket.blob("h").download_as_bytes() == b"x"


def test_md5_is_signed_and_checked(signer: Signer) -> None:
    digest = base64.b64encode(hashlib.md5(b"abc", usedforsecurity=False).digest()).decode()
    for version in VERSIONS:
        url = signer.url("m", version, method="PUT", content_md5=digest)
        assert signer.send("PUT", url, headers={"Content-MD5": digest}, data=b"abc").ok
        assert (
            signer.send("PUT", url, headers={"Content-MD5": digest}, data=b"abd").status_code == 400
        )


def test_payload_hash_is_signed_and_checked(signer: Signer) -> None:
    headers = {"x-goog-content-sha256": hashlib.sha256(b"abc").hexdigest()}
    url = signer.url("p", method="PUT", headers=dict(headers))
    assert signer.send("PUT", url, headers=headers, data=b"abc").status_code == 200
    assert signer.send("PUT", url, headers=headers, data=b"abd").status_code == 400
    forged = {"x-goog-content-sha256": hashlib.sha256(b"abd").hexdigest()}
    answer = signer.send("PUT", url, headers=forged, data=b"abd")
    assert code(answer) == (403, "SignatureDoesNotMatch")
    assert signer.bucket.blob("p").download_as_bytes() == b"abc"


@pytest.mark.parametrize("version", VERSIONS)
def test_customer_supplied_keys(signer: Signer, version: str) -> None:
    secret = os.urandom(32)
    blob = signer.bucket.blob("secret", encryption_key=secret)
    blob.upload_from_string(b"hidden")
    url = blob.generate_signed_url(
        version=version, expiration=timedelta(minutes=1), api_access_endpoint=f"https://{HOST}"
    )
    headers = {
        "x-goog-encryption-algorithm": "AES256",
        "x-goog-encryption-key": base64.b64encode(secret).decode(),
        "x-goog-encryption-key-sha256": base64.b64encode(hashlib.sha256(secret).digest()).decode(),
    }
    assert signer.send("GET", url, headers=headers).content == b"hidden"


@pytest.mark.parametrize("version", VERSIONS)
def test_response_parameters_and_generations(signer: Signer, version: str) -> None:
    signer.bucket.versioning_enabled = True
    signer.bucket.patch()
    blob = signer.bucket.get_blob("o")
    signer.bucket.blob("o").upload_from_string(b"newer")
    disposition = 'attachment; filename="a b.txt"'
    url = signer.url(
        *("o", version),
        response_type="image/png",
        response_disposition=disposition,
        generation=blob.generation,
    )
    answer = signer.send("GET", url)
    assert answer.content == b"data"
    assert answer.headers["Content-Type"] == "image/png"
    assert answer.headers["Content-Disposition"] == disposition


def test_mismatch_shows_what_should_have_been_signed(signer: Signer) -> None:
    url = signer.url("o")
    answer = signer.send("GET", url.replace("/o?", "/other?"))
    assert code(answer) == (403, "SignatureDoesNotMatch")
    elements = error(answer)
    assert elements["Message"] == "Access denied."
    canonical = elements["CanonicalRequest"].split("\n")
    assert canonical[:2] == ["GET", f"/{BUCKET}/other"]
    assert canonical[-4:] == [f"host:{HOST}", "", "host", "UNSIGNED-PAYLOAD"]
    text = elements["StringToSign"].split("\n")
    assert (text[0], text[2][8:]) == ("GOOG4-RSA-SHA256", "/auto/storage/goog4_request")
    assert text[3] == hashlib.sha256("\n".join(canonical).encode()).hexdigest()
    expires = int(time.time()) + 60
    answer = signer.send("GET", signer.url("o", "v2", expiration=expires).replace("/o?", "/other?"))
    assert error(answer)["StringToSign"] == f"GET\n\n\n{expires}\n/{BUCKET}/other"


@pytest.mark.parametrize("version", VERSIONS)
def test_changed_requests_are_refused(signer: Signer, version: str) -> None:
    """Another method, object, parameter, host, signer or signature."""
    signer.bucket.blob("other").upload_from_string(b"private-data")
    second = Robot(signer.cloud, "b-signer", "roles/storage.admin")
    second.make_key()
    url = signer.url("o", version)
    name = "Signature=" if version == "v2" else "X-Goog-Signature="
    signature = re.search(rf"{name}([^&]+)", url)[1]
    digits = unquote(signature)  # in base64 or hexadecimal
    forged = quote(digits[:4] + ("b" if digits[4] == "a" else "a") + digits[5:], safe="")
    for verb, changed in (
        ("PUT", url),
        ("DELETE", url),
        ("HEAD", url),
        ("GET", url.replace("/o?", "/other?")),
        ("GET", url.replace("/o?", "?")),
        ("GET", url.replace(signature, forged)),
        ("GET", url.replace("a-signer", "b-signer")),
        ("GET", url.replace("a-signer", "c-signer")),
        *([("GET", f"{url}&generation=1")] if version == "v4" else []),
        *([("GET", url.replace("//s", f"//{BUCKET}.s"))] if version == "v4" else []),
        *([("GET", f"{url}&acl")] if version == "v2" else []),
    ):
        answer = signer.send(verb, changed, data=b"changed" if verb == "PUT" else None)
        assert answer.status_code == 403, (verb, changed)
        assert b"private-data" not in answer.content and answer.content != b"data"
        if verb != "HEAD":
            assert error(answer)["Code"] == "SignatureDoesNotMatch"
    assert signer.bucket.blob("o").download_as_bytes() == b"data"


@pytest.mark.parametrize("path", ["/o", "/o?Expires=99999999999", "?list-type=2"])
def test_urls_without_a_signature_read_nothing(signer: Signer, path: str) -> None:
    for host in (HOST, "127.0.0.1"):
        answer = signer.send("GET", f"https://{host}/{BUCKET}{path}")
        assert answer.status_code == 401


def test_signatures_count_at_the_xml_api_only(signer: Signer) -> None:
    query = urlsplit(signer.url("o")).query
    for path in (
        f"/storage/v1/b/{BUCKET}/o/o",
        f"/download/storage/v1/b/{BUCKET}/o/o",
        f"/b/{BUCKET}/o/o",
        f"/v1/{PROJECT_NAME}/serviceAccounts",
        f"/upload/storage/v1/b/{BUCKET}/o",
        "/_local/status",
    ):
        host = "127.0.0.1" if path.startswith(("/v1", "/_")) else HOST
        assert signer.send("GET", f"https://{host}{path}?{query}").status_code == 401, path


def test_malformed_parameters_are_named(signer: Signer) -> None:
    url = signer.url("o")
    for pattern, replacement, parameter in (
        (r"X-Goog-Date=\w+", "X-Goog-Date=today", "x-goog-credential"),
        (r"X-Goog-Date=(\d{8})\w+", r"X-Goog-Date=\1T99", "x-goog-date"),
        (r"X-Goog-Expires=\d+", "X-Goog-Expires=604801", "x-goog-expires"),
        (r"X-Goog-Expires=\d+", "X-Goog-Expires=-1", "x-goog-expires"),
        (r"X-Goog-Expires=\d+", "X-Goog-Expires=", "x-goog-expires"),
        (r"&X-Goog-Credential=[^&]+", "", "x-goog-credential"),
        (r"X-Goog-Credential=[^&]+", "X-Goog-Credential=me", "x-goog-credential"),
        (r"goog4_request", "aws4_request", "x-goog-credential"),
        (r"SignedHeaders=host", "SignedHeaders=accept", "x-goog-signedheaders"),
        (r"SignedHeaders=host", "SignedHeaders=host%3Bx-goog-a", "x-goog-a"),
        (r"GOOG4-RSA-SHA256", "GOOG4-RSA-SHA1", "x-goog-algorithm"),
        (r"X-Goog-Signature=\w+", "X-Goog-Signature=zz", "signature"),
    ):
        answer = signer.send("GET", re.sub(pattern, replacement, url))
        assert code(answer) == (400, "MalformedSecurityHeader"), replacement
        assert error(answer)["ParameterName"] == parameter, replacement
    url = signer.url("o", "v2")
    for text in ("%21%21", "%FF", "%C3%A9"):
        answer = signer.send("GET", re.sub("Signature=[^&]+", f"Signature={text}", url))
        assert error(answer)["Details"] == "Signature was not base64 encoded"
    answer = signer.send("GET", re.sub("Expires=[^&]+", "Expires=soon", url))
    assert code(answer) == (400, "MalformedSecurityHeader")
    assert code(signer.send("GET", url.replace("GoogleAccessId", "Other")))[0] == 400
    hmac = signer.url("o").replace("GOOG4-RSA-SHA256", "GOOG4-HMAC-SHA256")
    assert code(signer.send("GET", hmac)) == (501, "NotImplemented")


@pytest.mark.parametrize("version", VERSIONS)
def test_expired_urls_are_refused(
    signer: Signer, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = int(time.time()) - 120
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(moment))
    monkeypatch.setattr(_signing, "get_v4_now_dtstamps", lambda: (stamp, stamp[:8]))
    lifetime: Any = timedelta(seconds=60) if version == "v4" else moment + 60
    answer = signer.send("GET", signer.url("o", version, expiration=lifetime))
    assert code(answer) == (400, "ExpiredToken")
    end = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(moment + 60))
    assert error(answer)["Details"] == (
        f"The provided token has expired. Request signature expired at: {end}"
    )


def test_urls_of_the_future_are_refused(signer: Signer, monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds, expected in ((600, 200), (1200, 403)):
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() + seconds))
        with monkeypatch.context() as context:
            context.setattr(_signing, "get_v4_now_dtstamps", lambda now=stamp: (now, now[:8]))
            url = signer.url("o")
        assert signer.send("GET", url).status_code == expected


def test_url_grants_what_its_signer_may_do(signer: Signer) -> None:
    reads, writes = signer.url("o"), signer.url("o", method="PUT")
    member = signer.robot.member
    with signer.cloud.storage() as owner:  # an account may always read what it uploaded
        owner.bucket(BUCKET).blob("o").upload_from_string(b"data")
    revoke(signer.cloud, PROJECT_NAME, "roles/storage.admin", member)
    denied = signer.send("GET", reads)
    assert code(denied) == (403, "AccessDenied")
    assert "storage.objects.get" in error(denied)["Details"]
    grant(signer.cloud, f"buckets/{BUCKET}", "roles/storage.objectViewer", member)
    assert signer.send("GET", reads).content == b"data"
    assert code(signer.send("PUT", writes, data=b"x")) == (403, "AccessDenied")


def test_disabled_keys_and_accounts_sign_nothing(signer: Signer) -> None:
    urls = [signer.url("o", version) for version in VERSIONS]
    robot, name = signer.robot, signer.robot.key_name(signer.key)

    def codes() -> set[int]:
        return {signer.send("GET", url).status_code for url in urls}

    assert codes() == {200}
    robot.post(f"{name}:disable")
    assert codes() == {403}
    robot.post(f"{name}:enable")
    assert codes() == {200}
    robot.post(f"{robot.name}:disable")
    assert codes() == {403}
    robot.post(f"{robot.name}:enable")
    robot.delete(name)
    assert codes() == {403}


def test_header_credentials_come_first(signer: Signer) -> None:
    """A signature in the URL of a request with a header changes nothing."""
    ann = Member(signer.cloud, "ann")
    headers = {"Authorization": f"Bearer {ann.token}"}
    assert signer.send("GET", signer.url("o"), headers=headers).status_code == 403
