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


class IdentityKey:
    """The signing key of one local cloud, created in its folder on first use."""

    def __init__(self, home: Path) -> None:
        folder = home / "authority"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = folder / "identity.key"
        if not file.exists():
            write_private(file, _new_key())
        key = serialization.load_pem_private_key(file.read_bytes(), None)
        assert isinstance(key, rsa.RSAPrivateKey)
        self._key = key
        self._public = key.public_key()
        self.id = hashlib.sha256(_public_bytes(self._public)).hexdigest()[:40]

    def sign(self, claims: Mapping[str, Any]) -> str:
        """A JSON Web Token with these claims, valid for an hour from now."""
        now = int(time.time())
        head = {"alg": "RS256", "kid": self.id, "typ": "JWT"}
        body = {"iss": ISSUER, "iat": now, "exp": now + TOKEN_SECONDS, **claims}
        signed = b".".join(_encoded(json.dumps(part).encode()) for part in (head, body))
        signature = self._key.sign(signed, padding.PKCS1v15(), hashes.SHA256())
        return (signed + b"." + _encoded(signature)).decode()

    def certificates(self) -> dict[str, str]:
        """The certificates by key id."""
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "local-cloud.invalid")])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self._public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + CERTIFICATE_LIFETIME)
            .sign(self._key, hashes.SHA256())
        )
        return {self.id: certificate.public_bytes(serialization.Encoding.PEM).decode()}

    def key_set(self) -> dict[str, Any]:
        """The same keys as a JSON Web Key Set."""
        numbers = self._public.public_numbers()
        fields = {"n": numbers.n, "e": numbers.e}
        encoded = {
            name: _encoded(value.to_bytes((value.bit_length() + 7) // 8)).decode()
            for name, value in fields.items()
        }
        return {"keys": [{"kty": "RSA", "alg": "RS256", "use": "sig", "kid": self.id, **encoded}]}


def certificates_for(path: str, home: Path) -> dict[str, Any] | None:
    """The content of Google's public key pages; None for any other path."""
    if path == "/oauth2/v1/certs":
        return IdentityKey(home).certificates()
    if path == "/oauth2/v3/certs":
        return IdentityKey(home).key_set()
    return None


def _new_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def _public_bytes(key: rsa.RSAPublicKey) -> bytes:
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
