"""OS Login: profiles, and which logins to machines they allow. Keys are ssh-keygen's."""

from __future__ import annotations

import time
from typing import Any

import pytest
from googleapiclient.errors import HttpError

from tests.support.account_keys import Robot
from tests.support.callers import OWNER, Member, grant
from tests.support.locations import PROJECT, PROJECT_NAME, US_ZONE
from tests.support.machine_specs import worker_spec

KEY = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ3S9bRbBbUOYDyPXKnwSZw2bAyHcyQHkh5WYm5Ymcbn somebody@home"
)
IMAGE = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"
FOLDER = f"/v1/users/{OWNER}"
ADMIN, LOGIN, ACT_AS = "compute.osAdminLogin", "compute.osLogin", "iam.serviceAccountUser"


@pytest.fixture(autouse=True)
def enabled(cloud: Any) -> None:
    cloud.enable("oslogin")


def microseconds(seconds: float) -> str:
    return str(int((time.time() + seconds) * 1e6))


def import_key(caller: Any, email: str, **key: str) -> Any:
    path = f"/v1/users/{email}:importSshPublicKey?projectId={PROJECT}"
    return caller.send_ok("POST", path, json={"key": KEY, **key})["loginProfile"]


def test_profile_gets_an_account_with_its_first_key(cloud: Any) -> None:
    users = cloud.discovered("oslogin", "v1").users()
    name = f"users/{OWNER}"
    empty = users.getLoginProfile(name=name, projectId=PROJECT).execute()
    assert {*empty} == {"name"}, "the account is created with a key"
    expiry = microseconds(3600)
    imported = users.importSshPublicKey(
        parent=name, projectId=PROJECT, body={"key": KEY, "expirationTimeUsec": expiry}
    ).execute()["loginProfile"]
    (account,) = imported["posixAccounts"]
    assert (account["username"], account["primary"]) == ("owner_local_cloud_invalid", True)
    assert account["homeDirectory"] == "/home/owner_local_cloud_invalid"
    ((fingerprint, key),) = imported["sshPublicKeys"].items()
    assert (key["fingerprint"], key["key"], key["expirationTimeUsec"]) == (fingerprint, KEY, expiry)
    assert len(bytes.fromhex(fingerprint)) == 32, "SHA-256"
    assert users.getLoginProfile(name=name, projectId=PROJECT).execute() == imported

    keys, later = users.sshPublicKeys(), microseconds(7200)
    changed = keys.patch(
        name=key["name"], updateMask="expirationTimeUsec", body={"expirationTimeUsec": later}
    ).execute()
    assert changed == {**key, "expirationTimeUsec": later} == keys.get(name=key["name"]).execute()
    with pytest.raises(HttpError, match="already exists"):
        keys.create(parent=name, body={"key": KEY}).execute()
    keys.delete(name=key["name"]).execute()
    assert keys.create(parent=name, body={"key": KEY}).execute()["fingerprint"] == fingerprint
    users.projects().delete(name=account["name"]).execute()
    assert "posixAccounts" not in users.getLoginProfile(name=name).execute()
    assert (
        users.projects().provisionPosixAccount(name=account["name"], body={}).execute() == account
    )


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        (f"{FOLDER}:importSshPublicKey", {"key": "no key"}, 400, "Invalid SSH public key"),
        (f"{FOLDER}/sshPublicKeys", {"key": KEY, "expirationTimeUsec": "1"}, 400, "in the past"),
        (f"{FOLDER}/sshPublicKeys", {"key": f"{KEY}{'x' * 32768}"}, 400, "exceeds 32 KiB"),
        ("/v1/users/other@example.com/sshPublicKeys", {"key": KEY}, 403, "does not have"),
    ],
)
def test_refused_keys(cloud: Any, path: str, body: Any, status: int, text: str) -> None:
    refused = Member.owner(cloud).status_and_message("POST", path, json=body)
    assert refused[0] == status and text in refused[1]


def test_login_needs_role_account_and_valid_key(cloud: Any) -> None:
    person, robot = Member(cloud, "jane.doe"), Robot(cloud, "machine")
    user = "jane_doe_example_com"
    spec = worker_spec(project=PROJECT, service_account=robot.email)
    admit = cloud.server.registry.service("os_login").admit

    def admitted(user: str = user, key: str = KEY) -> bool | None:
        result: bool | None = cloud.in_loop(admit, spec, user, key)
        return result

    assert import_key(person, person.email)["posixAccounts"][0]["username"] == user
    assert admitted() is None, "no role"
    grant(cloud, PROJECT_NAME, f"roles/{LOGIN}", person.name)
    assert admitted() is None, "may not act as the machine's account"
    grant(cloud, PROJECT_NAME, f"roles/{ACT_AS}", person.name)
    assert admitted() is False, "without sudo"
    grant(cloud, PROJECT_NAME, f"roles/{ADMIN}", person.name)
    assert admitted() is True
    assert admitted(key=KEY.replace("J3S9", "J3S8")) is None
    assert admitted(user="jane") is None
    import_key(person, person.email, expirationTimeUsec=microseconds(0.5))
    while admitted() is not None:
        time.sleep(0.05)

    imported = import_key(Member(cloud, robot.member), robot.email)
    assert imported["posixAccounts"][0]["username"] == f"sa_{robot.unique_id}"


def test_policy_sets_metadata_and_keeps_it(cloud: Any) -> None:
    cloud.put_setting("policies", ["compute.requireOsLogin"])
    owner, path = Member.owner(cloud), f"/compute/v1/projects/{PROJECT}"
    metadata = owner.send_ok("GET", path)["commonInstanceMetadata"]
    assert metadata["items"] == [{"key": "enable-oslogin", "value": "TRUE"}]
    off = {**metadata, "items": [{"key": "enable-oslogin", "value": "FALSE"}]}
    status, text = owner.status_and_message("POST", f"{path}/setCommonInstanceMetadata", json=off)
    assert status == 412
    assert text.startswith("Constraint constraints/compute.requireOsLogin violated for project ")
    instance = {
        "name": "box",
        "machineType": f"zones/{US_ZONE}/machineTypes/n1-standard-2",
        "disks": [{"boot": True, "initializeParams": {"sourceImage": IMAGE}}],
        "networkInterfaces": [{"network": "global/networks/default"}],
        "metadata": {"items": off["items"]},
    }
    status, _ = owner.status_and_message("POST", f"{path}/zones/{US_ZONE}/instances", json=instance)
    assert status == 412
