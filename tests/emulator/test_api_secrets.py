"""Secret Manager, through the client built from its discovery document, and over gRPC."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import google_crc32c
import pytest
from google.cloud.secretmanager_v1.services.secret_manager_service import (
    SecretManagerServiceClient,
)
from google.cloud.secretmanager_v1.types import SecretVersion
from googleapiclient import errors

from tests.support.callers import Member, grant
from tests.support.locations import PROJECT_NAME

AUTOMATIC = {"replication": {"automatic": {}}}
VALUE = "hf_안녕\n".encode()


@pytest.fixture
async def manager(new_cloud: Any) -> Any:
    """A local cloud with Secret Manager enabled."""
    new_cloud.enable("secretmanager", "iam")
    return new_cloud


class Client:
    """A blocking client of `projects.secrets`."""

    def __init__(self, cloud: Any) -> None:
        self.secrets = cloud.discovered("secretmanager", "v1").projects().secrets()
        self.versions = self.secrets.versions()

    def create(self, name: str = "token", **more: Any) -> Any:
        body = {**AUTOMATIC, **more}
        return self.secrets.create(parent=PROJECT_NAME, secretId=name, body=body).execute()

    def add(self, data: bytes = VALUE, name: str = "token", **payload: Any) -> Any:
        payload["data"] = base64.b64encode(data).decode()
        parent = f"{PROJECT_NAME}/secrets/{name}"
        return self.secrets.addVersion(parent=parent, body={"payload": payload}).execute()

    def access(self, version: str = "latest", name: str = "token") -> Any:
        version_name = f"{PROJECT_NAME}/secrets/{name}/versions/{version}"
        return self.versions.access(name=version_name).execute()


@pytest.fixture
async def client(manager: Any) -> Client:
    return Client(manager)


def refused(call: Callable[[], Any], status: int, text: str) -> None:
    with pytest.raises(errors.HttpError) as caught:
        call()
    assert (caught.value.status_code, caught.value.reason) == (status, text)


def test_access_returns_added_secret_value(client: Client) -> None:
    secret = client.create(labels={"team": "nlp"}, annotations={"A": "b"})
    name = secret["name"]
    assert name.startswith("projects/")
    assert name.split("/")[1].isdigit()
    assert (secret["labels"], secret["replication"]) == ({"team": "nlp"}, {"automatic": {}})
    assert client.secrets.get(name=f"{PROJECT_NAME}/secrets/token").execute() == secret
    assert client.secrets.get(name=name).execute() == secret
    version = client.add()
    assert (version["name"], version["state"]) == (f"{name}/versions/1", "ENABLED")
    assert "clientSpecifiedPayloadChecksum" not in version
    assert client.versions.get(name=version["name"]).execute() == version
    checksum = google_crc32c.value(VALUE)
    for number in ("latest", "1"):
        response = client.access(number)
        assert response["name"] == f"{name}/versions/1"
        assert base64.b64decode(response["payload"]["data"]) == VALUE
        assert response["payload"]["dataCrc32c"] == str(checksum)
    client.add(b"newer", dataCrc32c=str(google_crc32c.value(b"newer")))
    assert base64.b64decode(client.access()["payload"]["data"]) == b"newer"
    assert base64.b64decode(client.access("1")["payload"]["data"]) == VALUE


def test_lists_are_paginated_newest_first(client: Client) -> None:
    for name in ("b", "a", "c"):
        client.create(name)
    for number in range(11):
        client.add(str(number).encode(), "a")
    client.create("ab")  # has another secret's name as a prefix
    secret_names, token = [], None
    while True:
        answer = client.secrets.list(parent=PROJECT_NAME, pageSize=3, pageToken=token).execute()
        secret_names += [secret["name"].rpartition("/")[2] for secret in answer["secrets"]]
        assert answer["totalSize"] == 4
        if not (token := answer.get("nextPageToken")):
            break
    assert secret_names == ["ab", "c", "a", "b"]
    listed = client.versions.list(parent=f"{PROJECT_NAME}/secrets/a").execute()
    numbers = [int(version["name"].rpartition("/")[2]) for version in listed["versions"]]
    assert numbers == [*range(11, 0, -1)]
    assert client.versions.list(parent=f"{PROJECT_NAME}/secrets/ab").execute() == {}


def test_disabled_or_destroyed_version_cannot_be_accessed(client: Client) -> None:
    name = f"{client.create()['name']}/versions/1"
    client.add()
    assert client.versions.disable(name=name, body={}).execute()["state"] == "DISABLED"
    refused(client.access, 400, f"Secret Version [{name}] is in DISABLED state.")
    assert client.versions.enable(name=name, body={}).execute()["state"] == "ENABLED"
    assert base64.b64decode(client.access()["payload"]["data"]) == VALUE
    destroyed = client.versions.destroy(name=name, body={}).execute()
    assert destroyed["state"] == "DESTROYED"
    assert destroyed["destroyTime"] >= destroyed["createTime"]
    for change_state in (client.versions.enable, client.versions.disable, client.versions.destroy):
        refused(
            change_state(name=name, body={}).execute,
            400,
            f"Secret Version [{name}] is in DESTROYED state.",
        )
    refused(client.access, 400, f"Secret Version [{name}] is in DESTROYED state.")


def test_missing_secrets_and_versions_are_named(client: Client) -> None:
    name = client.create()["name"]
    refused(client.create, 409, f"Secret [{name}] already exists.")
    refused(client.access, 404, f"Secret [{name}] not found or has no versions.")
    absent = name.replace("token", "absent")
    refused(
        lambda: client.access("1", "absent"),
        404,
        f"Secret [{absent}] not found or has no versions.",
    )
    refused(client.secrets.get(name=absent).execute, 404, f"Secret [{absent}] not found.")
    client.add()
    refused(lambda: client.access("2"), 404, f"Secret Version [{name}/versions/2] not found.")
    refused(lambda: client.add(b""), 400, "Secret Payload cannot be empty.")
    for wrong in ({"data": "AAAA", "dataCrc32c": "1"}, {"data": "A" * 87384}):
        call = client.secrets.addVersion(parent=name, body={"payload": wrong})
        with pytest.raises(errors.HttpError, match="payload"):
            call.execute()
    with pytest.raises(errors.HttpError, match="topics is not implemented"):
        client.create("loud", topics=[{"name": "projects/p/topics/t"}])
    assert client.secrets.delete(name=name).execute() == {}
    refused(client.secrets.get(name=name).execute, 404, f"Secret [{name}] not found.")
    client.create()
    refused(lambda: client.access("1"), 404, f"Secret Version [{name}/versions/1] not found.")


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the clock of the secrets forward."""
    real_time = time.time

    def advance(seconds: float) -> None:
        clock = SimpleNamespace(time=lambda: real_time() + seconds)
        monkeypatch.setattr("tpuctl.emulator.secret_manager.service.time", clock)

    return advance


def test_secret_is_deleted_when_it_expires(client: Client, later: Callable[[float], None]) -> None:
    secret = client.create(ttl="3600s")
    assert "ttl" not in secret
    assert secret["expireTime"] > secret["createTime"]
    client.create("lasting")
    client.add()
    client.access()
    later(3601)
    refused(
        client.secrets.get(name=secret["name"]).execute,
        404,
        f"Secret [{secret['name']}] not found.",
    )
    with pytest.raises(errors.HttpError, match="not found or has no versions"):
        client.access()
    listed = client.secrets.list(parent=PROJECT_NAME).execute()["secrets"]
    assert [each["name"].rpartition("/")[2] for each in listed] == ["lasting"]
    client.create()
    with pytest.raises(errors.HttpError, match="not found or has no versions"):
        client.access()
    with pytest.raises(errors.HttpError, match="must be in the future"):
        client.create("past", expireTime="2020-01-01T00:00:00Z")


def test_destruction_is_delayed_until_it_is_due(
    client: Client, later: Callable[[float], None]
) -> None:
    client.create(versionDestroyTtl="86400s")
    enabled_name, destroyed_name = (client.add()["name"] for _ in range(2))
    for name in (enabled_name, destroyed_name):
        version = client.versions.destroy(name=name, body={}).execute()
        assert version["state"] == "DISABLED"
        assert version["scheduledDestroyTime"] > version["createTime"]
        assert "destroyTime" not in version
    enabled = client.versions.enable(name=enabled_name, body={}).execute()
    assert (enabled["state"], "scheduledDestroyTime" in enabled) == ("ENABLED", False)
    later(86401)
    states = {
        each["name"]: (each["state"], each.get("destroyTime"))
        for each in client.versions.list(parent=f"{PROJECT_NAME}/secrets/token").execute()[
            "versions"
        ]
    }
    assert states == {
        enabled_name: ("ENABLED", None),
        destroyed_name: ("DESTROYED", version["scheduledDestroyTime"]),
    }
    with pytest.raises(errors.HttpError, match="in DESTROYED state"):
        client.versions.enable(name=destroyed_name, body={}).execute()
    for wrong in ("3600s", "86400001s"):
        with pytest.raises(errors.HttpError, match="between 1 day and 1000 days"):
            client.create("wrong", versionDestroyTtl=wrong)


def test_update_changes_only_the_fields_of_its_mask(client: Client) -> None:
    secret = client.create(labels={"team": "nlp"}, annotations={"A": "b"}, ttl="3600s")
    name = secret["name"]

    def update(mask: str, **fields: Any) -> Any:
        return client.secrets.patch(name=name, updateMask=mask, body=fields).execute()

    changed = update("labels", labels={"stage": "test"}, annotations={"ignored": "yes"})
    assert (changed["labels"], changed["annotations"]) == ({"stage": "test"}, {"A": "b"})
    assert (changed["expireTime"], changed["createTime"]) == (
        secret["expireTime"],
        secret["createTime"],
    )
    assert client.secrets.get(name=name).execute() == changed
    assert changed["etag"] != secret["etag"]
    with pytest.raises(errors.HttpError, match="is not the current one"):
        update("labels", etag=secret["etag"])
    assert "annotations" not in update("annotations", etag=changed["etag"])
    assert update("ttl", ttl="7200s")["expireTime"] > secret["expireTime"]
    assert "expireTime" not in update("expireTime")
    assert update("versionDestroyTtl", versionDestroyTtl="86400s")["versionDestroyTtl"] == "86400s"
    assert "versionDestroyTtl" not in update("versionDestroyTtl")
    with pytest.raises(errors.HttpError, match="must name at least one field"):
        client.secrets.patch(name=name, body={"labels": {}}).execute()
    with pytest.raises(errors.HttpError, match="replication is not implemented"):
        update("replication", replication={"automatic": {}})


def test_alias_names_a_version(client: Client) -> None:
    name = client.create()["name"]
    client.add(b"old")
    client.add(b"new")

    def update(aliases: dict[str, str]) -> Any:
        body = {"versionAliases": aliases}
        return client.secrets.patch(name=name, updateMask="versionAliases", body=body).execute()

    assert update({"prod": "1"})["versionAliases"] == {"prod": "1"}
    response = client.access("prod")
    assert (response["name"], base64.b64decode(response["payload"]["data"])) == (
        f"{name}/versions/1",
        b"old",
    )
    for aliases, text in (
        ({"latest": "1"}, r"alias \[latest\] is not valid"),
        ({"1st": "1"}, r"alias \[1st\] is not valid"),
        ({"next": "3"}, "version 3, which does not exist"),
        ({f"a{number}": "1" for number in range(51)}, "at most 50 aliases"),
    ):
        with pytest.raises(errors.HttpError, match=text):
            update(aliases)


def test_lists_are_filtered(client: Client) -> None:
    client.create("a", labels={"team": "nlp"})
    client.create("b", labels={"team": "vision"})
    client.create("c")
    for _ in range(2):
        client.add(name="a")
    parent = f"{PROJECT_NAME}/secrets/a"
    client.versions.disable(name=f"{parent}/versions/1", body={}).execute()

    def names(collection: Any, parent: str, text: str) -> list[str]:
        response = collection.list(parent=parent, filter=text).execute()
        (rows,) = (rows for rows in response.values() if isinstance(rows, list))
        return [row["name"].rpartition("/")[2] for row in rows]

    assert names(client.secrets, PROJECT_NAME, "labels.team:nlp OR name:b") == ["b", "a"]
    assert names(client.secrets, PROJECT_NAME, "labels.team:*") == ["b", "a"]
    assert names(client.versions, parent, "state:ENABLED") == ["2"]
    with pytest.raises(errors.HttpError, match=r"create_time > 2020.* is not implemented"):
        names(client.secrets, PROJECT_NAME, "create_time > 2020")


def test_update_of_a_secret_requires_permission(manager: Any) -> None:
    Client(manager).create()
    ann, path = Member(manager, "ann"), f"/v1/{PROJECT_NAME}/secrets/token?updateMask=labels"
    assert ann.status_and_message("PATCH", path)[0] == 403
    grant(manager, PROJECT_NAME, "roles/secretmanager.admin", ann.name)
    assert ann.send("PATCH", path, json={"labels": {"a": "b"}}).ok


def test_secret_access_requires_permission(manager: Any) -> None:
    ann, path = Member(manager, "ann"), f"{PROJECT_NAME}/secrets/token"
    owner = Client(manager)
    owner.create()
    owner.create("other")
    for name in ("token", "other"):
        owner.add(VALUE, name)
    version = f"{path}/versions/latest"
    denied = (
        f"Permission 'secretmanager.versions.access' denied for resource '{version}' "
        "(or it may not exist)."
    )
    assert ann.status_and_message("GET", f"/v1/{version}:access") == (403, denied)
    policy = owner.secrets.getIamPolicy(resource=path).execute()
    accessor = "roles/secretmanager.secretAccessor"
    policy["bindings"] = [{"role": accessor, "members": [ann.name]}]
    saved = owner.secrets.setIamPolicy(resource=path, body={"policy": policy}).execute()
    assert saved["bindings"] == policy["bindings"]
    assert owner.secrets.getIamPolicy(resource=path).execute() == saved
    with pytest.raises(errors.HttpError, match="concurrent policy changes"):
        owner.secrets.setIamPolicy(resource=path, body={"policy": policy}).execute()
    assert ann.send("GET", f"/v1/{version}:access").ok
    assert (
        ann.status_and_message("GET", f"/v1/{PROJECT_NAME}/secrets/other/versions/1:access")[0]
        == 403
    )
    assert ann.status_and_message("GET", f"/v1/{version}")[0] == 403, "access does not imply get"
    body = {"permissions": ["secretmanager.versions.access", "secretmanager.versions.add"]}
    assert ann.send_ok("POST", f"/v1/{path}:testIamPermissions", json=body) == {
        "permissions": ["secretmanager.versions.access"]
    }
    grant(manager, PROJECT_NAME, "roles/secretmanager.viewer", ann.name)
    assert ann.send("GET", f"/v1/{version}").ok
    assert (
        ann.status_and_message("GET", f"/v1/{PROJECT_NAME}/secrets/other/versions/1:access")[0]
        == 403
    )
    assert (
        ann.status_and_message("GET", f"/v1/{PROJECT_NAME}/secrets/no/versions/1:access")[0] == 403
    )
    owner.secrets.delete(name=path).execute()
    owner.create()
    owner.add()
    assert ann.status_and_message("GET", f"/v1/{version}:access") == (403, denied), (
        "its policy went with it"
    )


def test_disabled_secret_manager_api(cloud: Any) -> None:
    answer = cloud.request("GET", f"/v1/{PROJECT_NAME}/secrets")
    error = answer.json()["error"]
    assert (error["code"], error["status"]) == (403, "PERMISSION_DENIED")
    assert error["message"].startswith("Secret Manager API has not been used in project")
    assert error["details"][0]["reason"] == "SERVICE_DISABLED"


def test_official_client_over_grpc(manager: Any) -> None:
    client = manager.client(SecretManagerServiceClient, "grpc")
    secret = client.create_secret(
        request={"parent": PROJECT_NAME, "secret_id": "token", "secret": AUTOMATIC}, timeout=60
    )
    payload = {"data": VALUE, "data_crc32c": google_crc32c.value(VALUE)}
    version = client.add_secret_version(
        request={"parent": secret.name, "payload": payload}, timeout=60
    )
    assert version.client_specified_payload_checksum
    assert version.state == SecretVersion.State.ENABLED
    answer = client.access_secret_version(request={"name": version.name}, timeout=60)
    assert (answer.payload.data, answer.name) == (VALUE, version.name)
    assert [secret.name for secret in client.list_secrets(parent=PROJECT_NAME, timeout=60)] == [
        secret.name
    ]
