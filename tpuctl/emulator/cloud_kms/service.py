"""Cloud KMS v1: key rings, keys, their versions with their states, and policies.

Key rings and keys cannot be deleted. A version that is destroyed is first scheduled for it, and is
restored as a disabled one. Wording without a source is a guess.
"""

from __future__ import annotations

import re
import time
from typing import Any

from google.protobuf import timestamp_pb2

from tpuctl.emulator.cloud_kms.messages import KMS
from tpuctl.emulator.iam.crypto_keys import KEYS, RINGS, VERSIONS, version_row
from tpuctl.emulator.state.errors import ApiError, invalid, missing, unimplemented
from tpuctl.emulator.wire.paging import requested_page
from tpuctl.emulator.wire.policy_handlers import PolicyHandlers
from tpuctl.emulator.wire.registry import Caller

_ID = re.compile(r"[a-zA-Z0-9_-]{1,63}")  # the methods' descriptions
_DESTROY_SECONDS = 30 * 24 * 3600  # CryptoKey.destroyScheduledDuration
_Row = dict[str, Any]


class KeyService(PolicyHandlers):
    """Handlers of google.cloud.kms.v1.KeyManagementService."""

    async def create_key_ring(self, request: Any, caller: Caller) -> Any:
        return _ring(self._create(RINGS, f"{request.parent}/keyRings", request.key_ring_id))

    async def get_key_ring(self, request: Any, caller: Caller) -> Any:
        return _ring(self._get(RINGS, request.name))

    async def list_key_rings(self, request: Any, caller: Caller) -> Any:
        rows, token, size = self._list(RINGS, request, f"{self._full(request.parent)}/keyRings/")
        response = KMS.message("ListKeyRingsResponse")
        return response(key_rings=map(_ring, rows), next_page_token=token, total_size=size)

    async def create_crypto_key(self, request: Any, caller: Caller) -> Any:
        """A symmetric key: services encrypt with no other."""
        requested = request.crypto_key
        if not requested.purpose:
            raise invalid("CryptoKey.purpose must be specified.")
        self._get(RINGS, request.parent)
        parent = f"{request.parent}/cryptoKeys"
        fields = {
            "labels": dict(requested.labels),
            "level": requested.version_template.protection_level or 1,
            "versions": 0,
            "primary": "",
        }
        with self._registry.store.transaction():
            key = self._create(KEYS, parent, request.crypto_key_id, fields)
            if not request.skip_initial_version_creation:
                self._add_version(key)
                key["primary"] = "1"
                self._registry.store.put_json(KEYS, key["name"], key)
        return self._key(key)

    async def get_crypto_key(self, request: Any, caller: Caller) -> Any:
        return self._key(self._get(KEYS, request.name))

    async def list_crypto_keys(self, request: Any, caller: Caller) -> Any:
        ring = self._get(RINGS, request.parent)
        rows, token, size = self._list(KEYS, request, f"{ring['name']}/cryptoKeys/")
        response = KMS.message("ListCryptoKeysResponse")
        return response(crypto_keys=map(self._key, rows), next_page_token=token, total_size=size)

    async def update_crypto_key_primary_version(self, request: Any, caller: Caller) -> Any:
        key = self._get(KEYS, request.name)
        number = request.crypto_key_version_id
        if self._get(VERSIONS, f"{request.name}/cryptoKeyVersions/{number}")["state"] != "ENABLED":
            raise ApiError("FAILED_PRECONDITION", "The primary version must be enabled.")
        key["primary"] = number
        self._registry.store.put_json(KEYS, key["name"], key)
        return self._key(key)

    async def create_crypto_key_version(self, request: Any, caller: Caller) -> Any:
        """It becomes primary only by updatePrimaryVersion."""
        with self._registry.store.transaction():
            return _version(self._add_version(self._get(KEYS, request.parent)))

    async def get_crypto_key_version(self, request: Any, caller: Caller) -> Any:
        return _version(self._get(VERSIONS, request.name))

    async def list_crypto_key_versions(self, request: Any, caller: Caller) -> Any:
        key = self._get(KEYS, request.parent)
        rows, token, size = self._list(VERSIONS, request, f"{key['name']}/cryptoKeyVersions/")
        response = KMS.message("ListCryptoKeyVersionsResponse")
        versions = map(_version, rows)
        return response(crypto_key_versions=versions, next_page_token=token, total_size=size)

    async def update_crypto_key_version(self, request: Any, caller: Caller) -> Any:
        """Enables or disables it."""
        if not request.update_mask:
            raise invalid("An update mask is required.")
        if request.update_mask != "state":
            raise unimplemented(f"Changing {request.update_mask}")
        requested = request.crypto_key_version
        state = _state_name(requested.state)
        if state not in ("ENABLED", "DISABLED"):
            raise invalid(f"A version cannot be changed to {state}.")
        return self._change(requested.name, ("ENABLED", "DISABLED"), state=state)

    async def destroy_crypto_key_version(self, request: Any, caller: Caller) -> Any:
        due = time.time() + _DESTROY_SECONDS
        states = ("ENABLED", "DISABLED")
        return self._change(request.name, states, state="DESTROY_SCHEDULED", destroyed=due)

    async def restore_crypto_key_version(self, request: Any, caller: Caller) -> Any:
        states = ("DESTROY_SCHEDULED",)
        return self._change(request.name, states, state="DISABLED", destroyed=None)

    def _change(self, name: str, states: tuple[str, ...], **fields: Any) -> Any:
        version = self._get(VERSIONS, name)
        if version["state"] not in states:
            text = f"{name} is {version['state']}; it must be {' or '.join(states)}."
            raise ApiError("FAILED_PRECONDITION", text)
        version |= fields
        self._registry.store.put_json(VERSIONS, version["name"], version)
        return _version(version)

    def _add_version(self, key: _Row) -> _Row:
        key["versions"] += 1
        self._registry.store.put_json(KEYS, key["name"], key)
        fields = {"state": "ENABLED", "level": key["level"], "destroyed": None}
        return self._create(
            VERSIONS, f"{key['name']}/cryptoKeyVersions", str(key["versions"]), fields
        )

    # Names and messages.

    def _full(self, name: str) -> str:
        """The name with the project's ID."""
        project = self._registry.projects.require(name.split("/")[1], "cloudkms.googleapis.com")
        return re.sub(r"^projects/[^/]+", f"projects/{project['id']}", name)

    def _create(self, kind: str, folder: str, id: str, fields: _Row | None = None) -> _Row:
        if not _ID.fullmatch(id):
            raise invalid(f"The ID '{id}' does not match [a-zA-Z0-9_-]{{1,63}}.")
        name = f"{self._full(folder)}/{id}"
        if self._registry.store.get(kind, name) is not None:
            noun = {RINGS: "KeyRing", KEYS: "CryptoKey"}[kind]
            raise ApiError("ALREADY_EXISTS", f"{noun} {name} already exists.")
        row = {"name": name, "created": time.time(), **(fields or {})}
        self._registry.store.put_json(kind, name, row)
        return row

    def _get(self, kind: str, name: str) -> _Row:
        store, full = self._registry.store, self._full(name)
        row = version_row(store, full) if kind == VERSIONS else store.get_json(kind, full)
        if row is None:
            noun = {RINGS: "KeyRing", KEYS: "CryptoKey", VERSIONS: "CryptoKeyVersion"}[kind]
            raise missing(f"{noun} {name} not found.")
        return row

    def _list(self, kind: str, request: Any, prefix: str) -> tuple[list[_Row], str, int]:
        rows = self._registry.store.list_json(kind, prefix)
        return *requested_page(request, rows), len(rows)

    def _policy_name(self, resource: str, verb: str) -> str:
        kind = KEYS if "/cryptoKeys/" in resource else RINGS
        return str(self._get(kind, resource)["name"])

    def _key(self, row: _Row) -> Any:
        key = KMS.message("CryptoKey")(name=row["name"], purpose=1, labels=row["labels"])
        key.create_time.CopyFrom(_time(row["created"]))
        key.version_template.protection_level = row["level"]
        key.version_template.algorithm = 1
        if row["primary"]:
            name = f"{row['name']}/cryptoKeyVersions/{row['primary']}"
            key.primary.CopyFrom(_version(self._get(VERSIONS, name)))
        return key


def _ring(row: _Row) -> Any:
    return KMS.message("KeyRing")(name=row["name"], create_time=_time(row["created"]))


def _version(row: _Row) -> Any:
    version = KMS.message("CryptoKeyVersion")(name=row["name"], algorithm=1)
    version.state = KMS.enums["CryptoKeyVersionState"].index(row["state"])
    version.protection_level = row["level"]
    for field in (version.create_time, version.generate_time):
        field.CopyFrom(_time(row["created"]))
    if row["destroyed"] is not None:
        is_over = row["state"] == "DESTROYED"
        field = version.destroy_event_time if is_over else version.destroy_time
        field.CopyFrom(_time(row["destroyed"]))
    return version


def _state_name(number: int) -> str:
    return KMS.enums["CryptoKeyVersionState"][number]


def _time(seconds: float) -> Any:
    timestamp = timestamp_pb2.Timestamp()
    timestamp.FromMicroseconds(int(seconds * 1e6))
    return timestamp
