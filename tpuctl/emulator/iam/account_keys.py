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
from functools import lru_cache
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tpuctl.emulator.machines.servers.identity_tokens import (
    make_certificate,
    new_private_key,
    private_pem,
    sign,
)
from tpuctl.emulator.state.store import Store

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
        parsed = x509.load_pem_x509_certificate(certificate.encode())
        key: Key = {
            "id": secrets.token_hex(20),
            "certificate": certificate,
            "created": time.time(),
            "expires": parsed.not_valid_after_utc.timestamp(),
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
        key = await self.managed(account)
        return str(key["id"]), sign(private_key_of(key), data)

    def verifies(self, email: str, data: bytes, signature: bytes, key_id: str = "") -> bool:
        """Whether a usable key of the account, or only that with this ID, made the signature."""
        return any(
            _verifies(_public_key(key["certificate"]), data, signature)
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
        return {key["id"]: _public_key(key["certificate"]) for key in self.usable(email)}


def managed_key_id(account: Mapping[str, Any]) -> str:
    """Known before the key is created."""
    text = str(account["unique_id"] or account["email"])
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def private_key_of(key: Key) -> rsa.RSAPrivateKey:
    private = serialization.load_pem_private_key(key["private"].encode(), None)
    assert isinstance(private, rsa.RSAPrivateKey)
    return private


def public_pem(certificate: str) -> bytes:
    """The public key of a certificate."""
    return _public_key(certificate).public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def is_rsa_certificate(pem: bytes) -> bool:
    """Whether it is an X.509 certificate of an RSA key."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
    except ValueError:
        return False
    return isinstance(certificate.public_key(), rsa.RSAPublicKey)


def _new_managed_key(account: Mapping[str, Any]) -> Key:
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


@lru_cache(maxsize=256)
def _public_key(certificate: str) -> rsa.RSAPublicKey:
    key = x509.load_pem_x509_certificate(certificate.encode()).public_key()
    assert isinstance(key, rsa.RSAPublicKey)
    return key


def _verifies(key: rsa.RSAPublicKey, data: bytes, signature: bytes) -> bool:
    try:
        key.verify(signature, data, padding.PKCS1v15(), hashes.SHA256())
    except InvalidSignature:
        return False
    return True
