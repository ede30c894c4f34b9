"""Secret Manager v1: secrets, their versions and policies.

Google's wording is from many public reports, for example `Secret Version
[projects/1/secrets/s/versions/2] is in DESTROYED state`; guesses are marked. Replication, labels
and annotations are stored without effect. A secret that has expired, and a version whose delayed
destruction is due, change when they are next read.
"""

from __future__ import annotations

import base64
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import google_crc32c
from google.cloud.secretmanager_v1.types import resources, service
from google.protobuf import field_mask_pb2, json_format

from tpuctl.emulator.state.errors import ApiError, invalid, missing, unimplemented
from tpuctl.emulator.state.projects import Project
from tpuctl.emulator.wire.filters import InvalidFilter, matches
from tpuctl.emulator.wire.paging import requested_page
from tpuctl.emulator.wire.policy_handlers import PolicyHandlers
from tpuctl.emulator.wire.registry import Caller, Registry

_SECRETS, _VERSIONS = "secret", "secret-version"  # kinds in the store
_SECRET_ID = re.compile(r"[a-zA-Z0-9_-]{1,255}")
_NAME = re.compile(r"projects/([^/]+)/secrets/([^/]+)(?:/versions/([^/]+))?")
_MAX_PAYLOAD_BYTES = 64 * 1024  # from the field's description
_MAX_PAGE_SIZE = 25_000  # from the method's description
# What clients may set; name, create_time and etag are set by the service.
_CHANGEABLE_FIELDS = (
    *("annotations", "expire_time", "labels", "ttl", "version_aliases", "version_destroy_ttl"),
)
_SUPPORTED_FIELDS = ("name", "replication", "create_time", "etag", *_CHANGEABLE_FIELDS)
# From the field's description.
_ALIAS = re.compile(r"(?!(?:latest|NEW)$)[a-zA-Z][a-zA-Z0-9_-]{0,62}")
_MAX_ALIASES = 50
# docs.cloud.google.com/secret-manager/docs/delay-destruction-of-secret-versions
_DESTROY_DAYS = (1, 1000)
_DAY_SECONDS = 24 * 60 * 60
_State = resources.SecretVersion.State

# Rows of the store. Secret: name (with project ID), number, said (the message as JSON), versions.
Secret = dict[str, Any]
# Version: name, number, state, created, scheduled and destroyed (None: not), data,
# client_checksum (it sent one), etag.
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
        fields = [field.name for field, _ in requested.ListFields()]
        _check_supported(fields, _SUPPORTED_FIELDS)
        if requested.replication.WhichOneof("replication") is None:
            raise invalid("Secret.replication must be provided.")  # a guess
        name = f"projects/{project['id']}/secrets/{request.secret_id}"
        with self._store.transaction():
            if self._find(name) is not None:
                raise ApiError(
                    "ALREADY_EXISTS", f"Secret [{self._public_name(name)}] already exists."
                )
            message = resources.Secret.pb()(replication=requested.replication, etag=_etag())
            message.create_time.FromMicroseconds(_now())
            _set_fields(message, requested, set(fields) & set(_CHANGEABLE_FIELDS), versions=0)
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
        listed = self._store.list_json(_SECRETS, f"projects/{project['id']}/secrets/")
        rows = [row for row in listed if self._find(row["name"]) is not None]
        page, token = _page(rows, request, self._secret)
        return service.ListSecretsResponse.pb()(
            secrets=page, next_page_token=token, total_size=len(rows)
        )

    async def get_secret(self, request: Any, caller: Caller) -> Any:
        return self._secret(self._get(request.name))

    async def delete_secret(self, request: Any, caller: Caller) -> None:
        """Deletes the secret with all its versions, permanently."""
        secret = self._get(request.name)
        _check_etag(request.etag, secret["resource"]["etag"])
        self._delete(secret)

    def _delete(self, secret: Secret) -> None:
        with self._store.transaction():
            for version in self._store.list_json(_VERSIONS, f"{secret['name']}/versions/"):
                self._store.delete(_VERSIONS, version["name"])
            self._store.delete(_SECRETS, secret["name"])
            self._policies.delete(secret["name"])

    async def update_secret(self, request: Any, caller: Caller) -> Any:
        requested, paths = request.secret, request.update_mask.paths
        if not paths:  # a guess
            raise invalid("The update mask must name at least one field.")
        _check_supported(paths, _CHANGEABLE_FIELDS)
        with self._store.transaction():
            secret = self._get(requested.name)
            _check_etag(requested.etag, secret["resource"]["etag"])
            message = _parsed(secret)
            _set_fields(message, requested, paths, versions=secret["versions"])
            message.etag = _etag()
            secret["resource"] = json_format.MessageToDict(message)
            self._store.put_json(_SECRETS, secret["name"], secret)
        return self._secret(secret)

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
                "scheduled": None,
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
        page, token = _page(versions, request, self._version)
        return service.ListSecretVersionsResponse.pb()(
            versions=page, next_page_token=token, total_size=len(versions)
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
        """Destroys the data permanently; later, if the secret says so. Until then it is disabled,
        and enabling it keeps it."""
        return self._change(request, _State.DESTROYED)

    def _change(self, request: Any, state: int) -> Any:
        with self._store.transaction():
            version = self._get_version(request.name)
            _check_etag(request.etag, version["etag"])
            if version["state"] == _State.DESTROYED:
                raise self._wrong_state(version)
            version |= {"state": state, "etag": _etag()}
            if state == _State.ENABLED:
                version["scheduled"] = None
            if state == _State.DESTROYED:
                delay = _parsed(self._get(request.name)).version_destroy_ttl.seconds
                if delay:
                    version |= {"state": _State.DISABLED, "scheduled": time.time() + delay}
                else:
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
        secret = self._find(full_name)
        if secret is None:
            raise missing(f"Secret [{self._public_name(full_name)}] not found.")
        return secret

    def _find(self, full_name: str) -> Secret | None:
        """The row of a secret; one that has expired is deleted."""
        secret: Secret | None = self._store.get_json(_SECRETS, full_name)
        if secret is None or "expireTime" not in secret["resource"]:
            return secret
        if _parsed(secret).expire_time.ToMicroseconds() > _now():
            return secret
        self._delete(secret)
        return None

    def _versions(self, secret: Secret) -> list[Version]:
        rows = self._store.list_json(_VERSIONS, f"{secret['name']}/versions/")
        return [self._settled(row) for row in rows]

    def _settled(self, version: Version) -> Version:
        """The version, destroyed if it is due."""
        due = version.get("scheduled")
        if due is not None and due <= time.time():
            version |= {"state": _State.DESTROYED, "data": "", "destroyed": due, "scheduled": None}
            self._store.put_json(_VERSIONS, version["name"], version)
        return version

    def _get_version(self, name: str) -> Version:
        """By number, alias, or `latest`: the last one added, in any state."""
        secret_name, number = self._parse(name)
        secret = self._find(secret_name)
        if secret is None or (number == "latest" and not secret["versions"]):
            raise missing(
                f"Secret [{self._public_name(secret_name)}] not found or has no versions."
            )
        if number == "latest":
            number = str(secret["versions"])
        number = secret["resource"].get("versionAliases", {}).get(number, number)
        version = self._store.get_json(_VERSIONS, f"{secret_name}/versions/{number}")
        if version is None:
            public_name = self._public_name(f"{secret_name}/versions/{number}")
            raise missing(f"Secret Version [{public_name}] not found.")
        return self._settled(version)

    def _wrong_state(self, version: Version) -> ApiError:
        name, state = self._public_name(version["name"]), _State(version["state"]).name
        return ApiError("FAILED_PRECONDITION", f"Secret Version [{name}] is in {state} state.")

    def _public_name(self, name: str) -> str:
        """The name in responses: with the project's number."""
        _, project, rest = name.split("/", 2)
        return f"projects/{self._registry.projects.require(project)['number']}/{rest}"

    def _secret(self, secret: Secret) -> Any:
        answer = _parsed(secret)
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
        if version.get("scheduled") is not None:
            answer.scheduled_destroy_time.FromMicroseconds(int(version["scheduled"] * 1e6))
        replication = self._get(version["name"].rpartition("/versions/")[0])["resource"][
            "replication"
        ]
        if "automatic" in replication:
            answer.replication_status.automatic.SetInParent()
        for replica in replication.get("userManaged", {}).get("replicas", ()):
            answer.replication_status.user_managed.replicas.add(location=replica["location"])
        return answer


def _page(items: list[Any], request: Any, show: Callable[[Any], Any]) -> tuple[list[Any], str]:
    """The messages of a page of the rows that the request's filter matches."""
    try:
        rows = [row for row in items if _matches(show(row), request.filter)]
    except InvalidFilter as error:
        raise unimplemented(f"The filter {request.filter!r}") from error
    rows.sort(key=_newest_first)
    page, token = requested_page(request, rows, _newest_first, max_size=_MAX_PAGE_SIZE)
    return [show(row) for row in page], token


def _matches(message: Any, text: str) -> bool:
    """docs.cloud.google.com/secret-manager/docs/filtering"""
    if not text:
        return True
    return matches(json_format.MessageToDict(message, preserving_proto_field_name=True), text)


def _check_supported(fields: Iterable[str], supported: Sequence[str]) -> None:
    for field in fields:
        if field not in supported:
            raise unimplemented(f"A secret's {field}")


def _set_fields(message: Any, requested: Any, paths: Iterable[str], *, versions: int) -> None:
    """Copy these fields; the wordings of refusals are guesses."""
    mask = field_mask_pb2.FieldMask(paths=[path for path in paths if path != "ttl"])
    mask.MergeMessage(requested, message, True, True)
    if "ttl" in paths:
        message.ClearField("expire_time")
        if requested.HasField("ttl"):
            message.expire_time.FromMicroseconds(_now() + requested.ttl.ToMicroseconds())
    if message.HasField("expire_time") and message.expire_time.ToMicroseconds() <= _now():
        raise invalid("The expiration of a secret must be in the future.")
    if message.HasField("version_destroy_ttl"):
        shortest, longest = (days * _DAY_SECONDS for days in _DESTROY_DAYS)
        if not shortest <= message.version_destroy_ttl.seconds <= longest:
            raise invalid("Secret.version_destroy_ttl must be between 1 day and 1000 days.")
    for alias, number in message.version_aliases.items():
        if not _ALIAS.fullmatch(alias):
            raise invalid(f"The alias [{alias}] is not valid.")
        if not 1 <= number <= versions:
            raise invalid(f"The alias [{alias}] is of version {number}, which does not exist.")
    if len(message.version_aliases) > _MAX_ALIASES:
        raise invalid(f"A secret can have at most {_MAX_ALIASES} aliases.")


def _parsed(secret: Secret) -> Any:
    return json_format.ParseDict(secret["resource"], resources.Secret.pb()())


def _now() -> int:
    """In microseconds."""
    return int(time.time() * 1e6)


def _newest_first(row: Mapping[str, Any]) -> str:
    return f"{10**12 - int(row['number']):012d}"


def _check_etag(etag: str, current: str) -> None:
    if etag and etag != current:  # the wording is a guess
        raise ApiError("FAILED_PRECONDITION", f"The etag {etag} is not the current one.")


def _etag() -> str:
    return f'"{secrets.token_hex(7)}"'
