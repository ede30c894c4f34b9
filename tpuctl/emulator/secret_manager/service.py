"""Secret Manager v1: secrets, their versions and policies.

Google's wording is from many public reports, for example `Secret Version
[projects/1/secrets/s/versions/2] is in DESTROYED state`; guesses are marked. Replication, labels
and annotations are stored without effect.
"""

from __future__ import annotations

import base64
import re
import secrets
import time
from collections.abc import Mapping
from typing import Any

import google_crc32c
from google.cloud.secretmanager_v1.types import resources, service
from google.protobuf import json_format

from tpuctl.emulator.state.errors import ApiError, invalid, missing, unimplemented
from tpuctl.emulator.state.projects import Project
from tpuctl.emulator.wire.paging import requested_page
from tpuctl.emulator.wire.policy_handlers import PolicyHandlers
from tpuctl.emulator.wire.registry import Caller, Registry

_SECRETS, _VERSIONS = "secret", "secret-version"  # kinds in the store
_SECRET_ID = re.compile(r"[a-zA-Z0-9_-]{1,255}")
_NAME = re.compile(r"projects/([^/]+)/secrets/([^/]+)(?:/versions/([^/]+))?")
_MAX_PAYLOAD_BYTES = 64 * 1024  # from the field's description
_MAX_PAGE_SIZE = 25_000  # from the method's description
# Of a secret to create; name, create_time and etag are set by the service.
_SUPPORTED_FIELDS = ("name", "replication", "create_time", "labels", "etag", "annotations")
_State = resources.SecretVersion.State

# Rows of the store. Secret: name (with project ID), number, said (the message as JSON), versions.
Secret = dict[str, Any]
# Version: name, number, state, created, destroyed, data, checked (client sent a checksum), etag.
Version = dict[str, Any]


class SecretsService(PolicyHandlers):
    """Handlers of google.cloud.secretmanager.v1.SecretManagerService."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self._store = registry.store

    # Secrets.

    async def create_secret(self, request: Any, caller: Caller) -> Any:
        project = self._project(request.parent)
        requested = request.secret
        if not _SECRET_ID.fullmatch(request.secret_id):  # the wording is a guess
            raise invalid(
                f"The provided Secret ID [{request.secret_id}] does not match the expected format "
                "[[a-zA-Z_0-9]+]"
            )
        for field, _ in requested.ListFields():
            if field.name not in _SUPPORTED_FIELDS:
                raise unimplemented(f"A secret's {field.name}")
        if requested.replication.WhichOneof("replication") is None:
            raise invalid("Secret.replication must be provided.")  # a guess
        name = f"projects/{project['id']}/secrets/{request.secret_id}"
        with self._store.transaction():
            if self._store.get(_SECRETS, name) is not None:
                raise ApiError(
                    "ALREADY_EXISTS", f"Secret [{self._public_name(name)}] already exists."
                )
            message = resources.Secret.pb()(
                replication=requested.replication,
                labels=requested.labels,
                annotations=requested.annotations,
                etag=_etag(),
            )
            message.create_time.FromMicroseconds(int(time.time() * 1e6))
            secret: Secret = {
                "name": name,
                "number": self._store.next("secret"),
                "resource": json_format.MessageToDict(message),
                "versions": 0,
            }
            self._store.put_json(_SECRETS, name, secret)
        return self._secret(secret)

    async def list_secrets(self, request: Any, caller: Caller) -> Any:
        """Newest first."""
        project = self._project(request.parent)
        all_secrets = self._store.list_json(_SECRETS, f"projects/{project['id']}/secrets/")
        rows, token = _page(all_secrets, request, "secrets")
        return service.ListSecretsResponse.pb()(
            secrets=map(self._secret, rows), next_page_token=token, total_size=len(all_secrets)
        )

    async def get_secret(self, request: Any, caller: Caller) -> Any:
        return self._secret(self._get(request.name))

    async def delete_secret(self, request: Any, caller: Caller) -> None:
        """Deletes the secret with all its versions, permanently."""
        secret = self._get(request.name)
        _check_etag(request.etag, secret["resource"]["etag"])
        with self._store.transaction():
            for version in self._versions(secret):
                self._store.delete(_VERSIONS, version["name"])
            self._store.delete(_SECRETS, secret["name"])
            self._policies.delete(secret["name"])

    # Versions.

    async def add_secret_version(self, request: Any, caller: Caller) -> Any:
        data, checksum = request.payload.data, request.payload.data_crc32c
        has_checksum = request.payload.HasField("data_crc32c")
        if not data:
            raise invalid("Secret Payload cannot be empty.")
        if len(data) > _MAX_PAYLOAD_BYTES:  # the wording is a guess
            raise invalid(f"The payload is larger than {_MAX_PAYLOAD_BYTES} bytes.")
        if has_checksum and checksum != google_crc32c.value(data):  # the wording is a guess
            raise invalid("The payload does not match its CRC32C checksum.")
        with self._store.transaction():
            secret = self._get(request.parent)
            secret["versions"] += 1
            number = secret["versions"]
            version: Version = {
                "name": f"{secret['name']}/versions/{number}",
                "number": number,
                "state": _State.ENABLED,
                "created": time.time(),
                "destroyed": None,
                "data": base64.b64encode(data).decode(),
                "client_checksum": has_checksum,
                "etag": _etag(),
            }
            self._store.put_json(_SECRETS, secret["name"], secret)
            self._store.put_json(_VERSIONS, version["name"], version)
        return self._version(version)

    async def list_secret_versions(self, request: Any, caller: Caller) -> Any:
        """Newest first."""
        versions = self._versions(self._get(request.parent))
        rows, token = _page(versions, request, "secrets.versions")
        return service.ListSecretVersionsResponse.pb()(
            versions=map(self._version, rows), next_page_token=token, total_size=len(versions)
        )

    async def get_secret_version(self, request: Any, caller: Caller) -> Any:
        return self._version(self._get_version(request.name))

    async def access_secret_version(self, request: Any, caller: Caller) -> Any:
        version = self._get_version(request.name)
        if version["state"] != _State.ENABLED:
            raise self._wrong_state(version)
        data = base64.b64decode(version["data"])
        answer = service.AccessSecretVersionResponse.pb()(name=self._public_name(version["name"]))
        answer.payload.data = data
        answer.payload.data_crc32c = google_crc32c.value(data)
        return answer

    async def disable_secret_version(self, request: Any, caller: Caller) -> Any:
        return self._change(request, _State.DISABLED)

    async def enable_secret_version(self, request: Any, caller: Caller) -> Any:
        return self._change(request, _State.ENABLED)

    async def destroy_secret_version(self, request: Any, caller: Caller) -> Any:
        """Destroys the data permanently."""
        return self._change(request, _State.DESTROYED)

    def _change(self, request: Any, state: int) -> Any:
        with self._store.transaction():
            version = self._get_version(request.name)
            _check_etag(request.etag, version["etag"])
            if version["state"] == _State.DESTROYED:
                raise self._wrong_state(version)
            version |= {"state": state, "etag": _etag()}
            if state == _State.DESTROYED:
                version |= {"data": "", "destroyed": time.time()}
            self._store.put_json(_VERSIONS, version["name"], version)
        return self._version(version)

    # Names and messages.

    def _policy_name(self, resource: str, verb: str) -> str:
        return str(self._get(resource)["name"])

    def _project(self, name: str) -> Project:
        kind, _, project = name.partition("/")
        if kind != "projects" or not project:
            raise invalid(f"Invalid resource name [{name}].")
        return self._registry.projects.require(project, "secretmanager.googleapis.com")

    def _parse(self, name: str) -> tuple[str, str]:
        """The secret's name with the project's ID, and the version ("" if none)."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise invalid(f"Invalid resource name [{name}].")
        project = self._project(f"projects/{match[1]}")
        return f"projects/{project['id']}/secrets/{match[2]}", match[3] or ""

    def _get(self, name: str) -> Secret:
        full_name, _ = self._parse(name)
        secret = self._store.get_json(_SECRETS, full_name)
        if secret is None:
            raise missing(f"Secret [{self._public_name(full_name)}] not found.")
        return secret

    def _versions(self, secret: Secret) -> list[Version]:
        return self._store.list_json(_VERSIONS, f"{secret['name']}/versions/")

    def _get_version(self, name: str) -> Version:
        """By number, or `latest`: the last one added, in any state."""
        secret_name, number = self._parse(name)
        secret = self._store.get_json(_SECRETS, secret_name)
        if secret is None or (number == "latest" and not secret["versions"]):
            raise missing(
                f"Secret [{self._public_name(secret_name)}] not found or has no versions."
            )
        if number == "latest":
            number = str(secret["versions"])
        version = self._store.get_json(_VERSIONS, f"{secret_name}/versions/{number}")
        if version is None:
            public_name = self._public_name(f"{secret_name}/versions/{number}")
            raise missing(f"Secret Version [{public_name}] not found.")
        return version

    def _wrong_state(self, version: Version) -> ApiError:
        name, state = self._public_name(version["name"]), _State(version["state"]).name
        return ApiError("FAILED_PRECONDITION", f"Secret Version [{name}] is in {state} state.")

    def _public_name(self, name: str) -> str:
        """The name in responses: with the project's number."""
        _, project, rest = name.split("/", 2)
        return f"projects/{self._registry.projects.require(project)['number']}/{rest}"

    def _secret(self, secret: Secret) -> Any:
        answer = json_format.ParseDict(secret["resource"], resources.Secret.pb()())
        answer.name = self._public_name(secret["name"])
        return answer

    def _version(self, version: Version) -> Any:
        answer = resources.SecretVersion.pb()(
            name=self._public_name(version["name"]),
            state=version["state"],
            etag=version["etag"],
            client_specified_payload_checksum=version["client_checksum"],
        )
        answer.create_time.FromMicroseconds(int(version["created"] * 1e6))
        if version["destroyed"] is not None:
            answer.destroy_time.FromMicroseconds(int(version["destroyed"] * 1e6))
        replication = self._get(version["name"].rpartition("/versions/")[0])["resource"][
            "replication"
        ]
        if "automatic" in replication:
            answer.replication_status.automatic.SetInParent()
        for replica in replication.get("userManaged", {}).get("replicas", ()):
            answer.replication_status.user_managed.replicas.add(location=replica["location"])
        return answer


def _page(items: list[Any], request: Any, collection: str) -> tuple[list[Any], str]:
    if request.filter:
        raise unimplemented(f"secretmanager.projects.{collection}.list with a filter")
    rows = sorted(items, key=_newest_first)
    return requested_page(request, rows, _newest_first, max_size=_MAX_PAGE_SIZE)


def _newest_first(row: Mapping[str, Any]) -> str:
    return f"{10**12 - int(row['number']):012d}"


def _check_etag(etag: str, current: str) -> None:
    if etag and etag != current:  # the wording is a guess
        raise ApiError("FAILED_PRECONDITION", f"The etag {etag} is not the current one.")


def _etag() -> str:
    return f'"{secrets.token_hex(7)}"'
