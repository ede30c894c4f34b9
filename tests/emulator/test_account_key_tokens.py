"""Keys of service accounts authenticate: at the token endpoint, and with self-signed tokens."""

from __future__ import annotations

import time
from typing import Any

import jwt
import pytest
import requests
from google.api_core import exceptions
from google.auth import exceptions as auth_exceptions
from google.auth.transport.requests import Request
from google.cloud import tpu_v2
from google.oauth2 import id_token, service_account

from tests.support.account_keys import Robot, allow_keys, without_lookups
from tests.support.locations import PROJECT_NAME, ZONE

CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
READ_ONLY = "https://www.googleapis.com/auth/devstorage.read_only"
ENDPOINT = "https://oauth2.googleapis.com/token"
PLACE = f"{PROJECT_NAME}/locations/{ZONE}"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    without_lookups(monkeypatch)


def prepared(cloud: Any, *roles: str) -> tuple[Robot, dict[str, Any]]:
    allow_keys(cloud)
    robot = Robot(cloud, "a-robot", *roles)
    return robot, robot.make_key()


def signed(key: dict[str, Any], *, key_id: str = "", **claims: Any) -> str:
    """A token by the key, valid for an hour, with these claims instead (None for no claim)."""
    now = int(time.time())
    all_claims = {"iss": key["client_email"], "iat": now, "exp": now + 3600, **claims}
    present = {name: value for name, value in all_claims.items() if value is not None}
    headers = {"kid": key_id or key["private_key_id"]}
    return jwt.encode(present, key["private_key"], "RS256", headers)


def exchange(cloud: Any, assertion: str) -> tuple[int, Any]:
    kind = "urn:ietf:params:oauth:grant-type:jwt-bearer"
    fields = {"grant_type": kind, "assertion": assertion}
    answer = requests.post(f"{cloud.url}/token", data=fields, timeout=60)
    return answer.status_code, answer.json()


def granted(cloud: Any, assertion: str) -> Any:
    status, answer = exchange(cloud, assertion)
    assert status == 200, answer
    return answer


def test_client_acts_with_the_roles_of_the_key_files_account(cloud: Any) -> None:
    robot, key = prepared(cloud, "roles/storage.admin")
    storage = robot.storage(key)
    bucket = storage.create_bucket("of-the-robot")
    bucket.blob("o").upload_from_string(b"data")
    assert bucket.blob("o").download_as_bytes() == b"data"
    other = Robot(cloud, "b-robot")
    with pytest.raises(exceptions.Forbidden, match=f"{other.email} does not have storage"):
        list(other.storage(other.make_key()).bucket("of-the-robot").list_blobs())


def test_scopes_limit_the_access_token(cloud: Any) -> None:
    robot, key = prepared(cloud, "roles/storage.admin")
    answer = granted(cloud, signed(key, aud=ENDPOINT, scope=READ_ONLY))
    assert (answer["token_type"], answer["expires_in"]) == ("Bearer", 3599)
    path = "/storage/v1/b?project=local-project"
    token = answer["access_token"]
    assert cloud.request("GET", path, token=token).status_code == 200
    refused = cloud.request("POST", path, token=token, json={"name": "a-bucket"})
    assert refused.status_code == 403
    info = cloud.request("GET", f"/tokeninfo?access_token={token}").json()
    assert (info["email"], info["scope"]) == (robot.email, READ_ONLY)


def test_token_endpoint_refuses_as_google_does(cloud: Any) -> None:
    robot, key = prepared(cloud)
    other = Robot(cloud, "b-robot")
    other_key = other.make_key()
    now = int(time.time())
    scope = {"scope": CLOUD_PLATFORM}
    time_error = (
        "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable "
        "timeframe. Check your iat and exp values in the JWT claim."
    )
    signature_error = "Invalid JWT Signature."
    for assertion, error, text in (
        (signed(key, aud=ENDPOINT, iss="x@y.z", **scope), "invalid_grant", "account not found"),
        (
            signed(other_key, aud=ENDPOINT, iss=robot.email, **scope),
            "invalid_grant",
            signature_error,
        ),
        (
            signed(key, aud=ENDPOINT, key_id=other_key["private_key_id"], **scope),
            *("invalid_grant", signature_error),
        ),
        (signed(key, aud=ENDPOINT, **scope)[:-8] + "AAAAAAAA", "invalid_grant", signature_error),
        (
            signed(key, aud="https://tpu.googleapis.com/", **scope),
            "invalid_grant",
            f"Invalid JWT: Failed audience check. The right audience is {ENDPOINT}",
        ),
        (signed(key, aud=ENDPOINT, exp=now + 7200, **scope), "invalid_grant", time_error),
        (
            signed(key, aud=ENDPOINT, iat=now - 7200, exp=now - 3601, **scope),
            "invalid_grant",
            time_error,
        ),
        (
            signed(key, aud=ENDPOINT, iat=now + 3600, exp=now + 7000, **scope),
            "invalid_grant",
            time_error,
        ),
        (signed(key, aud=ENDPOINT, exp=None, **scope), "invalid_grant", time_error),
        (signed(key, aud=ENDPOINT), "invalid_scope", "Invalid OAuth scope or ID token audience"),
        (
            signed(key, aud=ENDPOINT, scope="everything"),
            "invalid_scope",
            "Invalid OAuth scope or ID token audience",
        ),
        ("no token", "invalid_grant", "Invalid JWT"),
        ("eyJh.eyJh.eyJh", "invalid_grant", "Invalid JWT"),
    ):
        status, answer = exchange(cloud, assertion)
        assert (status, answer["error"]) == (400, error), answer
        assert text in answer["error_description"]
    status, answer = exchange(cloud, signed(key, aud=ENDPOINT, sub="ann@example.com", **scope))
    assert (status, answer["error"]) == (401, "unauthorized_client")


def test_unsigned_and_symmetric_tokens_are_refused(cloud: Any) -> None:
    robot, key = prepared(cloud, "roles/storage.admin")
    now = int(time.time())
    claims = {"iss": robot.email, "sub": robot.email, "iat": now, "exp": now + 60}
    claims |= {"aud": "https://storage.googleapis.com/", "scope": CLOUD_PLATFORM}
    for token in (
        jwt.encode(claims, "", "none"),
        jwt.encode(claims, key["private_key_id"] * 2, "HS256"),
    ):
        assert cloud.request("GET", "/storage/v1/b", token=token).status_code == 401
        assert exchange(cloud, token)[0] == 400


def test_disabled_and_deleted_keys_and_accounts_are_refused(cloud: Any) -> None:
    robot, key = prepared(cloud, "roles/storage.admin")
    second, name = robot.make_key(), robot.key_name(key)
    url = f"/storage/v1/b?project={PROJECT_NAME.partition('/')[2]}"

    def outcome(key: dict[str, Any]) -> tuple[int, str]:
        """The status of a call with a self-signed token, and the token endpoint's answer."""
        token = signed(key, sub=robot.email, aud="https://storage.googleapis.com/")
        status = cloud.request("GET", url, token=token).status_code
        _, answer = exchange(cloud, signed(key, aud=ENDPOINT, scope=CLOUD_PLATFORM))
        return status, answer.get("error_description", "")

    assert outcome(key) == outcome(second) == (200, "")
    robot.post(f"{name}:disable")
    assert outcome(key) == (401, "Invalid JWT Signature.")
    assert outcome(second) == (200, "")
    robot.post(f"{name}:enable")
    assert outcome(key) == (200, "")
    robot.delete(name)
    assert outcome(key) == (401, "Invalid JWT Signature.")
    robot.post(f"{robot.name}:disable")
    assert outcome(second) == (401, "Robot is disabled.")
    robot.post(f"{robot.name}:enable")
    assert outcome(second) == (200, "")
    robot.delete(robot.name)
    assert outcome(second) == (401, "Invalid grant: account not found")


def test_clients_sign_their_own_tokens(cloud: Any) -> None:
    """As google-auth does where no token endpoint is needed, over REST and gRPC."""
    robot, key = prepared(cloud, "roles/tpu.viewer")
    credentials = robot.credentials(key).with_always_use_jwt_access(True)
    options = {"api_endpoint": cloud.url}
    rest = tpu_v2.TpuClient(transport="rest", credentials=credentials, client_options=options)
    assert list(cloud.keep(rest).list_nodes(parent=PLACE)) == []
    with_scopes = credentials.with_scopes([CLOUD_PLATFORM])
    for signing, audience in ((credentials, "https://tpu.googleapis.com/"), (with_scopes, None)):
        signing._create_self_signed_jwt(audience)
        signing.refresh(None)
        transport = tpu_v2.TpuClient.get_transport_class("grpc")
        client = tpu_v2.TpuClient(transport=transport(channel=cloud.channel(signing.token)))
        assert list(client.list_nodes(parent=PLACE)) == []
        with pytest.raises(exceptions.PermissionDenied, match=r"tpu\.nodes\.delete"):
            client.delete_node(name=f"{PLACE}/nodes/n")


def test_self_signed_tokens_are_checked(cloud: Any) -> None:
    robot, key = prepared(cloud, "roles/storage.admin")
    now = int(time.time())
    usual = {"sub": robot.email, "aud": "https://storage.googleapis.com/"}
    path = "/storage/v1/b?project=local-project"

    def status(**claims: Any) -> int:
        answer = cloud.request("GET", path, token=signed(key, **{**usual, **claims}))
        return int(answer.status_code)

    assert status() == 200
    assert status(aud=None, scope=READ_ONLY) == 200
    assert status(sub="ann@example.com") == 401
    assert status(sub=None) == 401
    assert status(aud=ENDPOINT, scope=CLOUD_PLATFORM) == 401
    assert status(aud="https://example.com/") == 401
    assert status(aud=None) == 401
    assert status(exp=now - 3600, iat=now - 7000) == 401
    assert status(exp=now + 86400) == 401
    assert status(iat=now + 3000, exp=now + 3600) == 401
    assert status(iss="owner@local-cloud.invalid", sub="owner@local-cloud.invalid") == 401
    answer = cloud.request(
        "POST", path, token=signed(key, sub=robot.email, scope=READ_ONLY), json={"name": "a-bucket"}
    )
    assert answer.status_code == 403


def test_key_gets_identity_tokens(cloud: Any) -> None:
    robot, key = prepared(cloud)
    credentials = service_account.IDTokenCredentials.from_service_account_info(
        key, target_audience="https://service.example.com"
    )
    credentials.refresh(Request())
    claims = id_token.verify_token(
        credentials.token,
        Request(),
        audience="https://service.example.com",
        certs_url=f"{cloud.url}/oauth2/v1/certs",
    )
    assert claims["iss"] == "https://accounts.google.com"
    assert (claims["email"], claims["sub"]) == (robot.email, robot.unique_id)


def test_public_keys_of_an_account_are_published(cloud: Any) -> None:
    robot, key = prepared(cloud)
    certificates = requests.get(f"{cloud.url}/robot/v1/metadata/x509/{robot.email}", timeout=60)
    assert [*certificates.json()] == [key["private_key_id"]]
    page = requests.get(f"{cloud.url}/service_accounts/v1/jwk/{robot.email}", timeout=60).json()
    (public,) = jwt.PyJWKSet.from_dict(page).keys
    token = signed(key, aud="me")
    assert jwt.decode(token, public.key, ["RS256"], audience="me")["iss"] == robot.email
    robot.post(f"{robot.key_name(key)}:disable")
    certificates = requests.get(f"{cloud.url}/robot/v1/metadata/x509/{robot.email}", timeout=60)
    assert certificates.json() == {}
    missing = requests.get(f"{cloud.url}/robot/v1/metadata/x509/nobody@x.y", timeout=60)
    assert missing.status_code == 404


def test_key_file_without_scopes_is_refused(cloud: Any) -> None:
    robot, key = prepared(cloud)
    with pytest.raises(auth_exceptions.RefreshError, match="invalid_scope"):
        robot.credentials(key).refresh(Request())
