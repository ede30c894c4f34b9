"""Keys of service accounts.

Of user-managed keys only the certificate is kept. Each account also has a Google-managed key, with
which the IAM Service Account Credentials API signs; it is created when first used.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.emulator.state.store import Store

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import rsa

# Kinds in the store: user-managed keys by EMAIL/ID, and Google-managed ones by email.
_KEYS, _MANAGED = "account-key", "account-managed-key"
NEVER = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
# IAM's guide on keys: Google-managed ones are used "for up to two weeks" of their validity.
_MANAGED_LIFETIME = timedelta(days=2 * 366)

# ID, certificate, created and expires (seconds), disabled, uploaded; private if Google-managed.
Key = dict[str, Any]


class AccountKeys:
    """The keys of all service accounts, by the account's email."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, email: str, certificate: str, *, is_uploaded: bool = False) -> Key:
        """Add a user-managed key, which its certificate contains."""
        from tpuctl.emulator.machines.servers.rsa_keys import expiry

        key: Key = {
            "id": secrets.token_hex(20),
            "certificate": certificate,
            "created": time.time(),
            "expires": expiry(certificate).timestamp(),
            "disabled": False,
            "uploaded": is_uploaded,
        }
        self.put(email, key)
        return key

    def get(self, email: str, key_id: str) -> Key | None:
        return self._store.get_json(_KEYS, f"{email}/{key_id}")

    def put(self, email: str, key: Key) -> None:
        self._store.put_json(_KEYS, f"{email}/{key['id']}", key)

    def list_all(self, email: str) -> list[Key]:
        """The user-managed keys, oldest first."""
        keys = self._store.list_json(_KEYS, f"{email}/")
        return sorted(keys, key=lambda key: float(key["created"]))

    def delete(self, email: str, key_id: str) -> None:
        self._store.delete(_KEYS, f"{email}/{key_id}")

    def delete_all(self, email: str) -> None:
        """Delete every key of a deleted account."""
        for key in self.list_all(email):
            self.delete(email, key["id"])
        self._store.delete(_MANAGED, email)

    async def managed(self, account: Mapping[str, Any]) -> Key:
        """The Google-managed key of an account (email, unique_id), with its private part."""
        email = str(account["email"])
        key = self._store.get_json(_MANAGED, email)
        if key is None:
            new = await asyncio.to_thread(_new_managed_key, account)
            key = self._store.get_json(_MANAGED, email) or new
            self._store.put_json(_MANAGED, email, key)
        return key

    async def sign(self, account: Mapping[str, Any], data: bytes) -> tuple[str, bytes]:
        """The ID of the Google-managed key, and its signature of the data."""
        from tpuctl.emulator.machines.servers.rsa_keys import load_private_key, sign

        key = await self.managed(account)
        return str(key["id"]), sign(load_private_key(key["private"]), data)

    def verifies(self, email: str, data: bytes, signature: bytes, key_id: str = "") -> bool:
        """Whether a usable key of the account, or only that with this ID, made the signature."""
        from tpuctl.emulator.machines.servers.rsa_keys import verifies

        return any(
            verifies(key["certificate"], data, signature)
            for key in self.usable(email)
            if key_id in ("", key["id"])
        )

    def usable(self, email: str) -> Iterator[Key]:
        """Every key with which signatures are accepted now, user-managed or not."""
        managed = self._store.get_json(_MANAGED, email)
        for key in (*self.list_all(email), *((managed,) if managed else ())):
            if not key["disabled"] and time.time() < key["expires"]:
                yield key

    def public_keys(self, email: str) -> dict[str, rsa.RSAPublicKey]:
        """The usable keys, by ID."""
        from tpuctl.emulator.machines.servers.rsa_keys import public_key

        return {key["id"]: public_key(key["certificate"]) for key in self.usable(email)}


def managed_key_id(account: Mapping[str, Any]) -> str:
    """Known before the key is created."""
    text = str(account["unique_id"] or account["email"])
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _new_managed_key(account: Mapping[str, Any]) -> Key:
    from tpuctl.emulator.machines.servers.rsa_keys import make_certificate, new_private_key
    from tpuctl.local_cloud.certificate_authority import private_pem

    private = new_private_key()
    until = datetime.now(UTC) + _MANAGED_LIFETIME
    return {
        "id": managed_key_id(account),
        "certificate": make_certificate(private, str(account["email"])[:64], until),
        "private": private_pem(private),
        "created": time.time(),
        "expires": until.timestamp(),
        "disabled": False,
        "uploaded": False,
    }
