"""Cloud KMS, through the client built from its discovery document, and who encrypts with its keys.

The messages of Cloud Storage: googleapis/nodejs-storage#1254, and its page of status codes; those
of Compute Engine: kubernetes-sigs/gcp-compute-persistent-disk-csi-driver#590 and public logs.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import compute_v1
from googleapiclient import errors

from tests.support.callers import Member, grant
from tests.support.crypto_keys import Keys, agent
from tests.support.locations import PROJECT, PROJECT_NAME, REGION, ZONE

DENIED = (
    "Permission denied on Cloud KMS key. Please ensure that your Cloud Storage service account has "
    "been authorized to use this key."
)
DISABLED = "Cloud KMS key is disabled, destroyed, or scheduled to be destroyed."


@pytest.fixture
async def cloud(new_cloud: Any) -> Any:
    new_cloud.enable("compute", "tpu", "cloudkms", "orgpolicy", "iam")
    return new_cloud


@pytest.fixture
async def keys(cloud: Any) -> Keys:
    return await asyncio.to_thread(Keys, cloud, PROJECT, REGION)


def number(cloud: Any) -> str:
    return str(Member.owner(cloud).send_ok("GET", f"/v1/projects/{PROJECT}")["projectNumber"])


def forbid(cloud: Any, constraint: str, **values: list[str]) -> None:
    body = {
        "name": f"{PROJECT_NAME}/policies/{constraint}",
        "spec": {"rules": [{"values": values}]},
    }
    policies = cloud.discovered("orgpolicy", "v2").projects().policies()
    policies.create(parent=PROJECT_NAME, body=body).execute()


def insert_disk(cloud: Any, name: str, key: str = "") -> Any:
    disk: dict[str, Any] = {"name": name, "size_gb": 10}
    if key:
        disk["disk_encryption_key"] = {"kms_key_name": key}
    client = cloud.client(compute_v1.DisksClient)
    client.insert(project=PROJECT, zone=ZONE, disk_resource=disk, timeout=60).result(timeout=60)
    return client.get(project=PROJECT, zone=ZONE, disk=name, timeout=60)


def test_key_and_versions_have_their_life(cloud: Any) -> None:
    rings = cloud.discovered("cloudkms", "v1").projects().locations().keyRings()
    parent = f"{PROJECT_NAME}/locations/{REGION}"
    ring = rings.create(parent=parent, keyRingId="r", body={}).execute()["name"]
    keys = rings.cryptoKeys()
    body = {"purpose": "ENCRYPT_DECRYPT", "labels": {"team": "nlp"}}
    key = keys.create(parent=ring, cryptoKeyId="k", body=body).execute()
    assert key["primary"]["name"] == f"{ring}/cryptoKeys/k/cryptoKeyVersions/1"
    assert key["primary"]["state"] == "ENABLED"
    assert keys.list(parent=ring).execute() == {"cryptoKeys": [key], "totalSize": 1}
    with pytest.raises(errors.HttpError, match=r"already exists"):
        keys.create(parent=ring, cryptoKeyId="k", body=body).execute()
    versions = keys.cryptoKeyVersions()
    second = versions.create(parent=key["name"], body={}).execute()["name"]
    assert keys.get(name=key["name"]).execute()["primary"] == key["primary"]
    change = {"cryptoKeyVersionId": "2"}
    changed = keys.updatePrimaryVersion(name=key["name"], body=change).execute()
    assert changed["primary"]["name"] == second
    scheduled = versions.destroy(name=second, body={}).execute()
    assert scheduled["state"] == "DESTROY_SCHEDULED" and scheduled["destroyTime"]
    assert versions.restore(name=second, body={}).execute()["state"] == "DISABLED"
    with pytest.raises(errors.HttpError, match=r"must be enabled"):
        keys.updatePrimaryVersion(name=key["name"], body=change).execute()
    assert versions.list(parent=key["name"]).execute()["totalSize"] == 2


def test_policies_of_ring_and_key_grant(cloud: Any, keys: Keys) -> None:
    key, ann = keys.create(), Member(cloud, "ann")
    assert ann.status_and_message("GET", f"/v1/{key}") == (
        403,
        f"Permission 'cloudkms.cryptoKeys.get' denied on resource '{key}' (or it may not exist).",
    )
    policy = {"bindings": [{"role": "roles/cloudkms.viewer", "members": [ann.name]}]}
    keys.owner.send_ok("POST", f"/v1/{keys.ring}:setIamPolicy", json={"policy": policy})
    assert ann.send("GET", f"/v1/{key}").ok
    body = {"policy": {}}
    assert ann.status_and_message("POST", f"/v1/{key}:setIamPolicy", json=body)[0] == 403
    grant(cloud, PROJECT_NAME, "roles/cloudkms.admin", ann.name)
    assert ann.send("POST", f"/v1/{key}:setIamPolicy", json=body).ok
    permissions = ["cloudkms.cryptoKeys.setIamPolicy", "cloudkms.cryptoKeyVersions.useToEncrypt"]
    tested = ann.send_ok("POST", f"/v1/{key}:testIamPermissions", json={"permissions": permissions})
    assert tested == {"permissions": permissions[:1]}


def test_bucket_and_objects_need_the_agents_grant_and_an_enabled_version(
    cloud: Any, keys: Keys
) -> None:
    key, client = keys.create(), cloud.storage()
    bucket = client.bucket("encrypted")
    bucket.default_kms_key_name = key
    with pytest.raises(exceptions.Forbidden, match=DENIED):
        bucket.create(location=REGION)
    keys.set_members(key, agent(number(cloud), "gs-project-accounts"))
    bucket.create(location=REGION)
    blob = bucket.blob("o")
    blob.upload_from_string(b"data")
    assert client.bucket("encrypted").get_blob("o").kms_key_name == f"{key}/cryptoKeyVersions/1"
    keys.set_state(key, "DISABLED")
    for use in (blob.download_as_bytes, lambda: bucket.blob("p").upload_from_string(b"x")):
        with pytest.raises(exceptions.BadRequest, match=DISABLED):
            use()
    keys.set_state(key, "ENABLED")
    assert blob.download_as_bytes() == b"data"
    keys.set_members(key)
    with pytest.raises(exceptions.Forbidden, match="Permission denied on Cloud KMS key"):
        blob.download_as_bytes()


def test_disks_need_the_agents_grant_and_an_enabled_version(cloud: Any, keys: Keys) -> None:
    key = keys.create()
    message = (
        rf"Cloud KMS error when using key {key}: Permission "
        rf"'cloudkms.cryptoKeyVersions.useToEncrypt' denied on resource '{key}' \(or it may not"
    )
    with pytest.raises(exceptions.BadRequest, match=message):
        insert_disk(cloud, "d", key)
    keys.set_members(key, agent(number(cloud), "compute-system"))
    with pytest.raises(exceptions.BadRequest, match="location"):
        insert_disk(cloud, "d", key.replace(REGION, "us-east1"))
    created = insert_disk(cloud, "d", key)
    assert created.disk_encryption_key.kms_key_name == f"{key}/cryptoKeyVersions/1"
    keys.set_state(key, "DISABLED")
    with pytest.raises(exceptions.BadRequest, match="is not enabled, current state is: DISABLED"):
        insert_disk(cloud, "e", key)


def test_boot_disk_of_tpu_is_encrypted_over_rest(cloud: Any, keys: Keys) -> None:
    """With the field of Google's discovery document, which the Python client lacks."""
    key, owner = keys.create(), Member.owner(cloud)
    config = {"customerEncryptionKey": {"kmsKeyName": key}}
    body = {
        "acceleratorType": "v3-8",
        "runtimeVersion": "tpu-vm-tf-2.18.0-pjrt-v5p-and-below",
        "bootDiskConfig": config,
    }
    nodes = f"/v2/projects/{PROJECT}/locations/{ZONE}/nodes"
    status, text = owner.status_and_message("POST", nodes, params={"nodeId": "n"}, json=body)
    assert status == 400 and "useToEncrypt' denied" in text
    keys.set_members(key, agent(number(cloud), "compute-system"))
    owner.send_ok("POST", nodes, params={"nodeId": "n"}, json=body)
    assert owner.send_ok("GET", f"{nodes}/n")["bootDiskConfig"] == config


def test_policies_demand_keys_and_their_projects(cloud: Any, keys: Keys) -> None:
    key = keys.create()
    services = ("gs-project-accounts", "compute-system")
    keys.set_members(key, *(agent(number(cloud), service) for service in services))
    forbid(
        cloud,
        "gcp.restrictNonCmekServices",
        deniedValues=["compute.googleapis.com", "storage.googleapis.com"],
    )
    with pytest.raises(exceptions.PreconditionFailed, match="not protected by CMEK crypto key"):
        insert_disk(cloud, "d")
    bucket = cloud.storage().bucket("encrypted")
    with pytest.raises(exceptions.PreconditionFailed, match=r"gcp\.restrictNonCmekServices"):
        bucket.create(location=REGION)
    bucket.default_kms_key_name = key
    bucket.create(location=REGION)
    assert insert_disk(cloud, "d", key).name == "d"
    forbid(
        cloud, "gcp.restrictCmekCryptoKeyProjects", allowedValues=["under:projects/security-keys"]
    )
    with pytest.raises(exceptions.PreconditionFailed, match="restrictCmekCryptoKeyProjects"):
        insert_disk(cloud, "e", key)
