"""Keys of service accounts: created only where an organization policy permits it."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.serialization import pkcs12
from google.api_core import exceptions
from google.cloud import iam_admin_v1
from google.cloud.iam_admin_v1 import types

from tests.support.account_keys import Robot, allow_keys
from tests.support.callers import Member, grant
from tests.support.locations import PROJECT, PROJECT_NAME
from tpuctl.emulator.machines.servers.rsa_keys import make_certificate, new_private_key

FOREVER = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@pytest.fixture
def iam(cloud: Any) -> Any:
    return cloud.client(iam_admin_v1.IAMClient, "grpc")


def create(iam: Any, robot: Robot, **fields: Any) -> Any:
    return iam.create_service_account_key(request={"name": robot.name, **fields})


def uploadable() -> bytes:
    until = datetime.now(UTC) + timedelta(days=30)
    return make_certificate(new_private_key(), "mine", until).encode()


@pytest.mark.parametrize("resource", [PROJECT_NAME, "organizations/400000000001"])
def test_keys_are_refused_until_a_policy_permits_them(cloud: Any, iam: Any, resource: str) -> None:
    robot = Robot(cloud)
    with pytest.raises(exceptions.FailedPrecondition, match="Key creation is not allowed") as error:
        create(iam, robot)
    (failure,) = error.value.details
    assert failure.violations[0].type == "constraints/iam.disableServiceAccountKeyCreation"
    upload = {"name": robot.name, "public_key_data": uploadable()}
    with pytest.raises(exceptions.FailedPrecondition, match="disableServiceAccountKeyUpload"):
        iam.upload_service_account_key(request=upload)
    path = "policies/iam.disableServiceAccountKeyCreation:getEffectivePolicy"
    cloud.enable("orgpolicy")
    answer = Member.owner(cloud).send_ok("GET", f"/v2/{PROJECT_NAME}/{path}")
    assert answer["spec"]["rules"] == [{"enforce": True}]
    allow_keys(cloud, resource)
    assert create(iam, robot).private_key_data
    assert iam.upload_service_account_key(request=upload).name


def test_key_file_is_googles_and_only_its_public_part_is_kept(cloud: Any, iam: Any) -> None:
    allow_keys(cloud)
    robot = Robot(cloud)
    key = create(iam, robot)
    content = json.loads(key.private_key_data)
    assert content == {
        "type": "service_account",
        "project_id": PROJECT,
        "private_key_id": key.name.rpartition("/")[2],
        "private_key": content["private_key"],
        "client_email": robot.email,
        "client_id": robot.unique_id,
        "auth_uri": "https://accounts.google.com/o/oauth2/auth",
        "token_uri": "https://oauth2.googleapis.com/token",
        "auth_provider_x509_cert_url": "https://www.googleapis.com/oauth2/v1/certs",
        "client_x509_cert_url": (
            "https://www.googleapis.com/robot/v1/metadata/x509/"
            f"a-robot%40{PROJECT}.iam.gserviceaccount.com"
        ),
        "universe_domain": "googleapis.com",
    }
    private = serialization.load_pem_private_key(content["private_key"].encode(), None)
    assert private.key_size == 2048
    read = iam.get_service_account_key(request={"name": key.name, "public_key_type": 2})
    public = serialization.load_pem_public_key(read.public_key_data)
    public.verify(
        private.sign(b"data", padding.PKCS1v15(), hashes.SHA256()),
        *(b"data", padding.PKCS1v15(), hashes.SHA256()),
    )
    read = iam.get_service_account_key(request={"name": key.name, "public_key_type": 1})
    assert x509.load_pem_x509_certificate(read.public_key_data).public_key() == public
    state = b"".join(
        file.read_bytes() for file in cloud.server.home.iterdir() if "sqlite" in file.name
    )
    assert b"BEGIN CERTIFICATE" in state and b"PRIVATE KEY" not in state


def test_pkcs12_file_has_the_documented_password(cloud: Any, iam: Any) -> None:
    allow_keys(cloud)
    kind = types.ServiceAccountPrivateKeyType.TYPE_PKCS12_FILE
    key = create(iam, Robot(cloud), private_key_type=kind)
    private, certificate, _ = pkcs12.load_key_and_certificates(key.private_key_data, b"notasecret")
    assert private.public_key() == certificate.public_key()


def test_keys_are_listed_by_type_with_their_validity(cloud: Any, iam: Any) -> None:
    allow_keys(cloud)
    robot = Robot(cloud)
    kinds = types.ListServiceAccountKeysRequest.KeyType
    created = create(iam, robot)
    certificate = uploadable()
    request = {"name": robot.name, "public_key_data": certificate}
    uploaded = iam.upload_service_account_key(request=request)
    origins = types.ServiceAccountKeyOrigin
    assert uploaded.key_origin == origins.USER_PROVIDED
    assert created.key_origin == origins.GOOGLE_PROVIDED
    assert created.valid_before_time == FOREVER
    until = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    assert uploaded.valid_before_time == until

    def listed(*names: Any) -> list[str]:
        request = {"name": robot.name, "key_types": names}
        return [key.name for key in iam.list_service_account_keys(request=request).keys]

    user_managed = [created.name, uploaded.name]
    assert listed(kinds.USER_MANAGED) == user_managed
    (managed,) = listed(kinds.SYSTEM_MANAGED)
    assert sorted(listed()) == sorted([managed, *user_managed])
    read = iam.get_service_account_key(request={"name": managed, "public_key_type": 1})
    x509.load_pem_x509_certificate(read.public_key_data)
    with pytest.raises(exceptions.FailedPrecondition):
        iam.delete_service_account_key(request={"name": managed})
    with pytest.raises(exceptions.InvalidArgument):
        iam.upload_service_account_key(request={"name": robot.name, "public_key_data": b"no key"})


def test_keys_are_disabled_enabled_and_deleted(cloud: Any) -> None:
    """Over REST, as Google's discovery document describes it."""
    allow_keys(cloud)
    robot = Robot(cloud)
    keys = cloud.discovered("iam", "v1").projects().serviceAccounts().keys()
    name = keys.create(name=robot.name, body={}).execute()["name"]
    keys.disable(name=name, body={}).execute()
    assert keys.get(name=name).execute()["disabled"] is True
    keys.enable(name=name, body={}).execute()
    assert "disabled" not in keys.get(name=name).execute()
    keys.delete(name=name).execute()
    missing = f"Service account key {name.rpartition('/')[2]} does not exist."
    owner = Member.owner(cloud)
    for verb, path in (("GET", name), ("DELETE", name), ("POST", f"{name}:disable")):
        assert owner.status_and_message(verb, f"/v1/{path}") == (404, missing)


def test_account_has_ten_keys_at_most(cloud: Any, iam: Any) -> None:
    allow_keys(cloud)
    robot = Robot(cloud)
    certificate = uploadable()
    for _ in range(10):
        request = {"name": robot.name, "public_key_data": certificate}
        iam.upload_service_account_key(request=request)
    with pytest.raises(exceptions.FailedPrecondition, match="Precondition check failed"):
        create(iam, robot)


def test_keys_are_deleted_with_their_account(cloud: Any, iam: Any) -> None:
    allow_keys(cloud)
    robot = Robot(cloud)
    create(iam, robot)
    robot.delete(robot.name)
    robot.post(f"{PROJECT_NAME}/serviceAccounts/{robot.unique_id}:undelete")
    kinds = types.ListServiceAccountKeysRequest.KeyType
    request = {"name": robot.name, "key_types": [kinds.USER_MANAGED]}
    assert not iam.list_service_account_keys(request=request).keys


def test_keys_require_permissions_on_the_account(cloud: Any) -> None:
    allow_keys(cloud)
    robot, ann = Robot(cloud), Member(cloud, "ann")
    name = robot.key_name(robot.make_key())
    upload = {"publicKeyData": base64.b64encode(uploadable()).decode()}
    calls = (
        ("POST", f"{robot.name}/keys", "create", {}),
        ("POST", f"{robot.name}/keys:upload", "create", upload),
        ("GET", f"{robot.name}/keys", "list", None),
        ("GET", name, "get", None),
        ("POST", f"{name}:disable", "disable", {}),
        ("POST", f"{name}:enable", "enable", {}),
        ("DELETE", name, "delete", None),
    )
    for verb, path, permission, body in calls:
        assert ann.status_and_message(verb, f"/v1/{path}", json=body) == (
            403,
            f"Permission 'iam.serviceAccountKeys.{permission}' denied on resource "
            "(or it may not exist).",
        )
    grant(cloud, robot.name, "roles/iam.serviceAccountKeyAdmin", ann.name)
    for verb, path, _, body in calls:
        ann.send_ok(verb, f"/v1/{path}", json=body)
