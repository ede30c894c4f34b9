"""IAM Service Account Credentials, and what google-auth does with it."""

from __future__ import annotations

import base64
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import google.auth
import jwt
import pytest
import requests
from google.api_core import exceptions
from google.auth import iam as iam_endpoints
from google.auth import impersonated_credentials
from google.auth.transport.requests import Request
from google.cloud import iam_credentials_v1, storage
from google.oauth2 import id_token
from google.oauth2.credentials import Credentials
from google.protobuf import duration_pb2

from tests.support.account_keys import Robot, without_lookups
from tests.support.callers import Member, grant
from tests.support.locations import PROJECT, PROJECT_NAME

CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
CREATOR = "roles/iam.serviceAccountTokenCreator"
HOST = "storage.googleapis.com"


@pytest.fixture(autouse=True)
def prepared(cloud: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.enable("iamcredentials")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    without_lookups(monkeypatch)
    for name in ("_IAM_ENDPOINT", "_IAM_SIGN_ENDPOINT", "_IAM_SIGNJWT_ENDPOINT"):
        address = getattr(iam_endpoints, name)
        local = address.replace("https://iamcredentials.googleapis.com", cloud.url)
        monkeypatch.setattr(iam_endpoints, name, local)


@pytest.fixture(params=["grpc", "rest"])
def client(cloud: Any, request: Any) -> Any:
    return cloud.client(iam_credentials_v1.IAMCredentialsClient, request.param)


def full_name(email: str) -> str:
    return f"projects/-/serviceAccounts/{email}"


def key_set(cloud: Any, email: str) -> Any:
    """The account's public keys, by ID."""
    page = requests.get(f"{cloud.url}/service_accounts/v1/jwk/{email}", timeout=60).json()
    return {key.key_id: key.key for key in jwt.PyJWKSet.from_dict(page).keys}


def test_access_token_has_the_accounts_roles_and_the_scopes(cloud: Any, client: Any) -> None:
    robot = Robot(cloud, "a-robot", "roles/storage.admin")
    scope = ["https://www.googleapis.com/auth/devstorage.read_only"]
    lifetime = duration_pb2.Duration(seconds=600)
    before = datetime.now(UTC)
    answer = client.generate_access_token(
        name=full_name(robot.unique_id), scope=scope, lifetime=lifetime
    )
    seconds = (answer.expire_time - before).total_seconds()
    assert 590 <= seconds <= 660
    path = "/storage/v1/b?project=local-project"
    assert cloud.request("GET", path, token=answer.access_token).status_code == 200
    refused = cloud.request("POST", path, token=answer.access_token, json={"name": "a-bucket"})
    assert refused.status_code == 403
    info = cloud.request("GET", f"/tokeninfo?access_token={answer.access_token}").json()
    assert (info["email"], info["scope"]) == (robot.email, scope[0])


def test_identity_token_is_googles(cloud: Any, client: Any) -> None:
    robot = Robot(cloud)
    certificates = f"{cloud.url}/oauth2/v1/certs"
    for include_email in (True, False):
        token = client.generate_id_token(
            name=full_name(robot.email), audience="https://a.example", include_email=include_email
        ).token
        claims = id_token.verify_token(
            token, Request(), audience="https://a.example", certs_url=certificates
        )
        assert (claims["iss"], claims["sub"]) == ("https://accounts.google.com", robot.unique_id)
        assert claims.get("email") == (robot.email if include_email else None)
        assert claims["exp"] - claims["iat"] == 3600


def test_blobs_and_tokens_are_signed_by_a_key_of_the_account(cloud: Any, client: Any) -> None:
    robot = Robot(cloud)
    name = full_name(robot.email)
    blob = client.sign_blob(name=name, payload=b"\0data")
    public = key_set(cloud, robot.email)[blob.key_id]
    algorithm = jwt.get_algorithm_by_name("RS256")
    assert algorithm.verify(b"\0data", public, blob.signed_blob)
    assert not algorithm.verify(b"\0date", public, blob.signed_blob)
    claims = {"iss": robot.email, "aud": "me", "exp": int(time.time()) + 60, "x": [1]}
    signed = client.sign_jwt(name=name, payload=json.dumps(claims))
    assert jwt.get_unverified_header(signed.signed_jwt)["kid"] == signed.key_id == blob.key_id
    assert jwt.decode(signed.signed_jwt, public, ["RS256"], audience="me") == claims
    keys = Member.owner(cloud).send_ok("GET", f"/v1/{robot.name}/keys")["keys"]
    assert [(key["name"].rpartition("/")[2], key["keyType"]) for key in keys] == [
        (blob.key_id, "SYSTEM_MANAGED")
    ]


def test_signed_token_is_exchanged_for_an_access_token(cloud: Any) -> None:
    robot = Robot(cloud)
    now = int(time.time())
    claims = {"iss": robot.email, "aud": "https://oauth2.googleapis.com/token", "iat": now}
    claims |= {"exp": now + 3600, "scope": CLOUD_PLATFORM}
    path = f"/v1/{full_name(robot.email)}:signJwt"
    signed = Member.owner(cloud).send_ok("POST", path, json={"payload": json.dumps(claims)})
    fields = {
        "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "assertion": signed["signedJwt"],
    }
    answer = requests.post(f"{cloud.url}/token", data=fields, timeout=60).json()
    info = cloud.request("GET", f"/tokeninfo?access_token={answer['access_token']}").json()
    assert info["email"] == robot.email


CALLS = (
    ("generateAccessToken", "getAccessToken", {"scope": [CLOUD_PLATFORM]}),
    ("generateIdToken", "getOpenIdToken", {"audience": "me"}),
    ("signBlob", "signBlob", {"payload": base64.b64encode(b"x").decode()}),
    ("signJwt", "signJwt", {"payload": "{}"}),
)


@pytest.mark.parametrize(("method", "permission", "body"), CALLS)
def test_permission_on_the_account_is_required(
    cloud: Any, method: str, permission: str, body: Any
) -> None:
    robot, ann = Robot(cloud), Member(cloud, "ann")
    path = f"/v1/{full_name(robot.email)}:{method}"
    grant(cloud, PROJECT_NAME, "roles/editor", ann.name)
    answer = ann.send("POST", path, json=body)
    error = answer.json()["error"]
    permission = f"iam.serviceAccounts.{permission}"
    text = f"Permission '{permission}' denied on resource (or it may not exist)."
    assert (answer.status_code, error["status"], error["message"]) == (
        *(403, "PERMISSION_DENIED"),
        text,
    )
    (info,) = error["details"]
    assert (info["reason"], info["domain"]) == ("IAM_PERMISSION_DENIED", "iam.googleapis.com")
    assert info["metadata"] == {"permission": permission}
    grant(cloud, robot.name, CREATOR, ann.name)
    ann.send_ok("POST", path, json=body)
    limited = Member(cloud, "ann", ["https://www.googleapis.com/auth/devstorage.read_only"])
    assert limited.send("POST", path, json=body).status_code == 403
    wide = Member(cloud, "ann", ["https://www.googleapis.com/auth/iam"])
    wide.send_ok("POST", path, json=body)


@pytest.mark.parametrize(("method", "permission", "body"), CALLS)
def test_delegates_need_the_role_on_the_next_account(
    cloud: Any, method: str, permission: str, body: Any
) -> None:
    first, second, last = (Robot(cloud, f"robot-{letter}") for letter in "abc")
    ann = Member(cloud, "ann")
    chain = [full_name(first.email), full_name(second.email)]
    path = f"/v1/{full_name(last.email)}:{method}"

    def refused() -> str:
        answer = ann.send("POST", path, json={**body, "delegates": chain})
        if answer.ok:
            return ""
        assert answer.status_code == 403, answer.text
        name: str = answer.json()["error"]["details"][0]["metadata"]["permission"]
        return name.rpartition(".")[2]

    assert refused() == "implicitDelegation"
    grant(cloud, first.name, CREATOR, ann.name)
    assert refused() == "implicitDelegation"
    grant(cloud, second.name, CREATOR, first.member)
    assert refused() == permission
    grant(cloud, last.name, CREATOR, ann.name)  # not the delegate's
    assert refused() == permission
    grant(cloud, last.name, CREATOR, second.member)
    assert refused() == ""


def test_invalid_requests_are_refused(cloud: Any) -> None:
    robot, owner = Robot(cloud), Member.owner(cloud)
    name = full_name(robot.email)

    def status(method: str, account: str = name, **body: Any) -> int:
        return int(owner.send("POST", f"/v1/{account}:{method}", json=body).status_code)

    scope = [CLOUD_PLATFORM]
    assert status("generateAccessToken", scope=scope, lifetime="3600s") == 200
    assert status("generateAccessToken", scope=scope, lifetime="3601s") == 400
    assert status("generateAccessToken", scope=scope, lifetime="0s") == 400
    assert status("generateAccessToken") == 400
    assert status("generateAccessToken", scope=["everything"]) == 400
    assert status("generateAccessToken", robot.name, scope=scope) == 400
    assert status("generateIdToken") == 400
    for payload in ("", "no json", "[]", json.dumps({"exp": int(time.time()) + 13 * 3600})):
        assert status("signJwt", payload=payload) == 400
    missing = full_name(f"nothing@{PROJECT}.iam.gserviceaccount.com")
    answer = owner.send("POST", f"/v1/{missing}:generateAccessToken", json={"scope": scope})
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        404,
        f"Not found; Gaia id not found for email nothing@{PROJECT}.iam.gserviceaccount.com",
    )
    robot.post(f"{robot.name}:disable")
    assert status("generateAccessToken", scope=scope) == 400


def test_default_account_signs_too(cloud: Any) -> None:
    client = cloud.client(iam_credentials_v1.IAMCredentialsClient, "grpc")
    email = f"{cloud.project_number}-compute@developer.gserviceaccount.com"
    blob = client.sign_blob(name=full_name(email), payload=b"x")
    assert [*key_set(cloud, email)] == [blob.key_id]
    with pytest.raises(exceptions.NotFound):
        client.sign_blob(name=full_name("123-compute@developer.gserviceaccount.com"), payload=b"x")


def test_api_must_be_enabled(new_cloud: Any) -> None:
    new_cloud.enable("iam")
    registry = new_cloud.server.registry
    api = "iamcredentials.googleapis.com"
    new_cloud.in_loop(registry.store.delete, "enabled", f"{PROJECT}/{api}")
    robot = Robot(new_cloud)
    answer = Member.owner(new_cloud).send(
        "POST", f"/v1/{full_name(robot.email)}:signBlob", json={"payload": "eA=="}
    )
    assert answer.status_code == 403
    assert answer.json()["error"]["details"][0]["reason"] == "SERVICE_DISABLED"


@pytest.mark.parametrize("version", ["v2", "v4"])
def test_impersonated_credentials_sign_urls(cloud: Any, version: str) -> None:
    """google-auth signs with signBlob where it has no key."""
    robot = Robot(cloud, "a-robot", "roles/storage.admin")
    ann = Member(cloud, "ann")
    grant(cloud, robot.name, CREATOR, ann.name)
    credentials = impersonated_credentials.Credentials(
        Credentials(token=ann.token), robot.email, [CLOUD_PLATFORM]
    )
    client = storage.Client(
        project=PROJECT, credentials=credentials, client_options={"api_endpoint": cloud.url}
    )
    blob = client.create_bucket("impersonated").blob("o")
    blob.upload_from_string(b"data")
    fields = {"version": version, "expiration": timedelta(minutes=1)}
    url = blob.generate_signed_url(**fields)
    assert requests.get(url, timeout=60).content == b"data"
    assert requests.get(url.replace("/o?", "/p?"), timeout=60).status_code == 403
    robot.post(f"{robot.name}:disable")
    assert requests.get(url, timeout=60).status_code == 403


def test_credentials_file_of_an_impersonated_account(
    cloud: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `gcloud auth application-default login --impersonate-service-account` writes it."""
    robot = Robot(cloud, "a-robot", "roles/storage.admin")
    ann = Member(cloud, "ann")
    grant(cloud, robot.name, CREATOR, ann.name)
    path = tmp_path / "adc.json"
    source = {"type": "authorized_user", "client_id": "c", "client_secret": "s"}
    source |= {"refresh_token": ann.token, "token_uri": f"{cloud.url}/token"}
    url = f"{cloud.url}/v1/{full_name(robot.email)}:generateAccessToken"
    content = {"type": "impersonated_service_account", "source_credentials": source}
    content |= {"service_account_impersonation_url": url, "delegates": []}
    path.write_text(json.dumps(content), "utf-8")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    monkeypatch.setattr(
        "google.oauth2.credentials._GOOGLE_OAUTH2_TOKEN_ENDPOINT", f"{cloud.url}/token"
    )
    credentials, _ = google.auth.default(scopes=[CLOUD_PLATFORM])
    client = storage.Client(
        project=PROJECT, credentials=credentials, client_options={"api_endpoint": cloud.url}
    )
    client.create_bucket("of-the-robot")
    info = cloud.request("GET", f"/tokeninfo?access_token={credentials.token}").json()
    assert info["email"] == robot.email
