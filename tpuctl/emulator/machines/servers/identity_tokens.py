"""Signed identity tokens of machines, and the certificates to verify them.

As documented for the metadata server's `identity` at
cloud.google.com/compute/docs/instances/verifying-instance-identity; google-auth fetches the
certificates from www.googleapis.com/oauth2/v1/certs (google/oauth2/id_token.py), other libraries
the same keys from /oauth2/v3/certs.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from tpuctl.local_cloud.gateway_address import write_private

ISSUER = "https://accounts.google.com"
TOKEN_SECONDS = 3600
CERTIFICATE_LIFETIME = timedelta(days=3650)


def new_private_key(bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


def private_pem(key: rsa.RSAPrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def sign(key: rsa.RSAPrivateKey, data: bytes) -> bytes:
    """The RS256 signature of these bytes."""
    return key.sign(data, padding.PKCS1v15(), hashes.SHA256())


def sign_token(key: rsa.RSAPrivateKey, key_id: str, claims: Mapping[str, Any]) -> str:
    """A JSON Web Token with these claims."""
    head = {"alg": "RS256", "kid": key_id, "typ": "JWT"}
    signed = b".".join(_encoded(json.dumps(part).encode()) for part in (head, claims))
    return (signed + b"." + _encoded(sign(key, signed))).decode()


def make_certificate(key: rsa.RSAPrivateKey, common_name: str, until: datetime) -> str:
    """A self-signed certificate of the key, in PEM format."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(until)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def public_key_set(keys: Mapping[str, rsa.RSAPublicKey]) -> dict[str, Any]:
    """Keys by ID as a JSON Web Key Set."""
    return {"keys": [_json_web_key(key_id, key) for key_id, key in keys.items()]}


def _json_web_key(key_id: str, key: rsa.RSAPublicKey) -> dict[str, str]:
    numbers = key.public_numbers()
    fields = {"n": numbers.n, "e": numbers.e}
    encoded = {
        name: _encoded(value.to_bytes((value.bit_length() + 7) // 8)).decode()
        for name, value in fields.items()
    }
    return {"kty": "RSA", "alg": "RS256", "use": "sig", "kid": key_id, **encoded}


class IdentityKey:
    """The signing key of one local cloud, created in its folder on first use."""

    def __init__(self, home: Path) -> None:
        folder = home / "authority"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = folder / "identity.key"
        if not file.exists():
            write_private(file, private_pem(new_private_key()))
        key = serialization.load_pem_private_key(file.read_bytes(), None)
        assert isinstance(key, rsa.RSAPrivateKey)
        self._key = key
        self._public = key.public_key()
        self.id = hashlib.sha256(_public_bytes(self._public)).hexdigest()[:40]

    def sign(self, claims: Mapping[str, Any]) -> str:
        """A JSON Web Token with these claims, valid for an hour from now."""
        now = int(time.time())
        body = {"iss": ISSUER, "iat": now, "exp": now + TOKEN_SECONDS, **claims}
        return sign_token(self._key, self.id, body)

    def certificates(self) -> dict[str, str]:
        """The certificates by key id."""
        until = datetime.now(UTC) + CERTIFICATE_LIFETIME
        return {self.id: make_certificate(self._key, "local-cloud.invalid", until)}

    def key_set(self) -> dict[str, Any]:
        """The same keys as a JSON Web Key Set."""
        return public_key_set({self.id: self._public})


def certificates_for(path: str, home: Path) -> dict[str, Any] | None:
    """The content of Google's public key pages; None for any other path."""
    if path == "/oauth2/v1/certs":
        return IdentityKey(home).certificates()
    if path == "/oauth2/v3/certs":
        return IdentityKey(home).key_set()
    return None


def _public_bytes(key: rsa.RSAPublicKey) -> bytes:
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
