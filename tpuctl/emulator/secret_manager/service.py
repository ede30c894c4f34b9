"""Secret Manager v1: secrets, their versions and who may read them.

Google's words are those of many public reports, as `Secret Version
[projects/1/secrets/s/versions/2] is in DESTROYED state`; those marked so are guesses. Replication
is remembered and otherwise without meaning, as are labels and annotations.
"""

from __future__ import annotations

import base64
import re
import secrets
import time
from collections.abc import Mapping
from typing import Any

import google_crc32c
from google.iam.v1 import iam_policy_pb2
from google.protobuf import json_format

from tpuctl.emulator.iam.policies import Policies, concurrent_change, from_message, to_message
from tpuctl.emulator.secret_manager.messages import V1
from tpuctl.emulator.state.errors import ApiError, invalid, missing, unimplemented
from tpuctl.emulator.state.operations import Effect
from tpuctl.emulator.state.projects import Project
from tpuctl.emulator.wire.paging import page
from tpuctl.emulator.wire.registry import Caller, World

__all__ = ["SecretsService"]

_SECRETS, _VERSIONS = "secret", "secret-version"  # kinds of the store
_SECRET_ID = re.compile(r"[a-zA-Z0-9_-]{1,255}")
_NAME = re.compile(r"projects/([^/]+)/secrets/([^/]+)(?:/versions/([^/]+))?")
_LARGEST = 64 * 1024  # bytes of a payload, by its description
_PAGE = 25_000  # the same
_NOT_IMITATED = ("topics", "expire_time", "ttl", "rotation", "version_destroy_ttl", "tags")
_ENABLED, _DISABLED, _DESTROYED = 1, 2, 3
_STATES = {_ENABLED: "ENABLED", _DISABLED: "DISABLED", _DESTROYED: "DESTROYED"}

Secret = dict[str, Any]  # name (by the project's id), number, said (JSON of the message), versions
Version = dict[str, Any]  # name, number, state, created, destroyed, data, checked, etag


class SecretsService:
    """The handlers of google.cloud.secretmanager.v1.SecretManagerService."""

    effects: Mapping[str, Effect] = {}

    def __init__(self, world: World) -> None:
        self._world = world
        self._store = world.store
        self._policies = Policies(world.store)

    def handler(self, service: str) -> Any:
        return self

    # Secrets.

    async def create_secret(self, request: Any, caller: Caller) -> Any:
        project = self._project(request.parent)
        wanted = request.secret
        if not _SECRET_ID.fullmatch(request.secret_id):  # the words are a guess
            raise invalid(
                f"The provided Secret ID [{request.secret_id}] does not match the expected format "
                "[[a-zA-Z_0-9]+]"
            )
        for field in _NOT_IMITATED:
            value = getattr(wanted, field)
            if wanted.HasField(field) if hasattr(value, "DESCRIPTOR") else len(value):
                raise unimplemented(f"A secret's {field}")
        if not any(wanted.replication.HasField(one) for one in ("automatic", "user_managed")):
            raise invalid("Secret.replication must be provided.")  # a guess
        name = f"projects/{project['id']}/secrets/{request.secret_id}"
        with self._store.transaction():
            if self._store.get(_SECRETS, name) is not None:
                raise ApiError("ALREADY_EXISTS", f"Secret [{self._told(name)}] already exists.")
            said = V1.message("Secret")(
                replication=wanted.replication,
                labels=wanted.labels,
                annotations=wanted.annotations,
                etag=_etag(),
            )
            said.create_time.FromMicroseconds(int(time.time() * 1e6))
            secret: Secret = {
                "name": name,
                "number": self._store.next("secret"),
                "said": json_format.MessageToDict(said),
                "versions": 0,
            }
            self._store.put_json(_SECRETS, name, secret)
        return self._secret(secret)

    async def list_secrets(self, request: Any, caller: Caller) -> Any:
        """The newest first."""
        project = self._project(request.parent)
        found = self._store.list_json(_SECRETS, f"projects/{project['id']}/secrets/")
        rows, token = _page(found, request, "secrets")
        return V1.message("ListSecretsResponse")(
            secrets=map(self._secret, rows), next_page_token=token, total_size=len(found)
        )

    async def get_secret(self, request: Any, caller: Caller) -> Any:
        return self._secret(self._get(request.name))

    async def delete_secret(self, request: Any, caller: Caller) -> None:
        """With all its versions, for good."""
        secret = self._get(request.name)
        _match(request.etag, secret["said"]["etag"])
        with self._store.transaction():
            for version in self._versions(secret):
                self._store.delete(_VERSIONS, version["name"])
            self._store.delete(_SECRETS, secret["name"])
            self._policies.delete(secret["name"])

    # Versions.

    async def add_secret_version(self, request: Any, caller: Caller) -> Any:
        data, told = request.payload.data, request.payload.data_crc32c
        if not data:
            raise invalid("Secret Payload cannot be empty.")
        if len(data) > _LARGEST:  # the words are a guess
            raise invalid(f"The payload is larger than {_LARGEST} bytes.")
        if told and told != google_crc32c.value(data):  # the words are a guess
            raise invalid("The payload does not match its CRC32C checksum.")
        with self._store.transaction():
            secret = self._get(request.parent)
            secret["versions"] += 1
            number = secret["versions"]
            version: Version = {
                "name": f"{secret['name']}/versions/{number}",
                "number": number,
                "state": _ENABLED,
                "created": time.time(),
                "destroyed": None,
                "data": base64.b64encode(data).decode(),
                "checked": bool(told),
                "etag": _etag(),
            }
            self._store.put_json(_SECRETS, secret["name"], secret)
            self._store.put_json(_VERSIONS, version["name"], version)
        return self._version(version)

    async def list_secret_versions(self, request: Any, caller: Caller) -> Any:
        """The newest first."""
        found = self._versions(self._get(request.parent))
        rows, token = _page(found, request, "secrets.versions")
        return V1.message("ListSecretVersionsResponse")(
            versions=map(self._version, rows), next_page_token=token, total_size=len(found)
        )

    async def get_secret_version(self, request: Any, caller: Caller) -> Any:
        return self._version(self._get_version(request.name))

    async def access_secret_version(self, request: Any, caller: Caller) -> Any:
        version = self._get_version(request.name)
        if version["state"] != _ENABLED:
            raise self._not_in_a_state(version)
        data = base64.b64decode(version["data"])
        answer = V1.message("AccessSecretVersionResponse")(name=self._told(version["name"]))
        answer.payload.data = data
        answer.payload.data_crc32c = google_crc32c.value(data)
        return answer

    async def disable_secret_version(self, request: Any, caller: Caller) -> Any:
        return self._change(request, _DISABLED)

    async def enable_secret_version(self, request: Any, caller: Caller) -> Any:
        return self._change(request, _ENABLED)

    async def destroy_secret_version(self, request: Any, caller: Caller) -> Any:
        """The data is gone for good."""
        return self._change(request, _DESTROYED)

    def _change(self, request: Any, state: int) -> Any:
        with self._store.transaction():
            version = self._get_version(request.name)
            _match(request.etag, version["etag"])
            if version["state"] == _DESTROYED:
                raise self._not_in_a_state(version)
            version |= {"state": state, "etag": _etag()}
            if state == _DESTROYED:
                version |= {"data": "", "destroyed": time.time()}
            self._store.put_json(_VERSIONS, version["name"], version)
        return self._version(version)

    # Policies.

    async def get_iam_policy(self, request: Any, caller: Caller) -> Any:
        return to_message(self._policies.get(self._get(request.resource)["name"]))

    async def set_iam_policy(self, request: Any, caller: Caller) -> Any:
        name = self._get(request.resource)["name"]
        wanted = from_message(request.policy)
        return to_message(self._policies.set(name, wanted, concurrent_change()))

    async def test_iam_permissions(self, request: Any, caller: Caller) -> Any:
        name = self._get(request.resource)["name"]
        names = self._world.authority.granted(caller, name, request.permissions)
        return iam_policy_pb2.TestIamPermissionsResponse(permissions=names)

    # How things are found and told.

    def _project(self, name: str) -> Project:
        kind, _, project = name.partition("/")
        if kind != "projects" or not project:
            raise invalid(f"Invalid resource name [{name}].")
        return self._world.projects.require(project, "secretmanager.googleapis.com")

    def _parse(self, name: str) -> tuple[str, str]:
        """The secret's name by its project's id, and the version, "" where none is named."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise invalid(f"Invalid resource name [{name}].")
        project = self._project(f"projects/{found[1]}")
        return f"projects/{project['id']}/secrets/{found[2]}", found[3] or ""

    def _get(self, name: str) -> Secret:
        known, _ = self._parse(name)
        found = self._store.get_json(_SECRETS, known)
        if found is None:
            raise missing(f"Secret [{self._told(known)}] not found.")
        return found

    def _versions(self, secret: Secret) -> list[Version]:
        return self._store.list_json(_VERSIONS, f"{secret['name']}/versions/")

    def _get_version(self, name: str) -> Version:
        """By number, or the latest that was ever added, whatever became of it."""
        known, number = self._parse(name)
        secret = self._store.get_json(_SECRETS, known)
        if secret is None or (number == "latest" and not secret["versions"]):
            raise missing(f"Secret [{self._told(known)}] not found or has no versions.")
        if number == "latest":
            number = str(secret["versions"])
        found = self._store.get_json(_VERSIONS, f"{known}/versions/{number}")
        if found is None:
            told = self._told(f"{known}/versions/{number}")
            raise missing(f"Secret Version [{told}] not found.")
        return found

    def _not_in_a_state(self, version: Version) -> ApiError:
        name, state = self._told(version["name"]), _STATES[version["state"]]
        return ApiError("FAILED_PRECONDITION", f"Secret Version [{name}] is in {state} state.")

    def _told(self, name: str) -> str:
        """As answers name it: by its project's number."""
        _, project, rest = name.split("/", 2)
        return f"projects/{self._world.projects.require(project)['number']}/{rest}"

    def _secret(self, secret: Secret) -> Any:
        answer = json_format.ParseDict(secret["said"], V1.message("Secret")())
        answer.name = self._told(secret["name"])
        return answer

    def _version(self, version: Version) -> Any:
        answer = V1.message("SecretVersion")(
            name=self._told(version["name"]),
            state=version["state"],
            etag=version["etag"],
            client_specified_payload_checksum=version["checked"],
        )
        answer.create_time.FromMicroseconds(int(version["created"] * 1e6))
        if version["destroyed"] is not None:
            answer.destroy_time.FromMicroseconds(int(version["destroyed"] * 1e6))
        replication = self._get(version["name"].rpartition("/versions/")[0])["said"]["replication"]
        if "automatic" in replication:
            answer.replication_status.automatic.SetInParent()
        for replica in replication.get("userManaged", {}).get("replicas", ()):
            answer.replication_status.user_managed.replicas.add(location=replica["location"])
        return answer


def _page(found: list[Any], request: Any, what: str) -> tuple[list[Any], str]:
    if request.filter:
        raise unimplemented(f"secretmanager.projects.{what}.list with a filter")
    rows = sorted(found, key=_newest_first)
    return page(rows, request.page_size, request.page_token, _newest_first, max_size=_PAGE)


def _newest_first(row: Mapping[str, Any]) -> str:
    return f"{10**12 - int(row['number']):012d}"


def _match(given: str, current: str) -> None:
    if given and given != current:  # the words are a guess
        raise ApiError("FAILED_PRECONDITION", f"The etag {given} is not the current one.")


def _etag() -> str:
    return f'"{secrets.token_hex(7)}"'
