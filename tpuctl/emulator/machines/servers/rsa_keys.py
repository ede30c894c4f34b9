"""RSA keys of accounts and of the local cloud: signatures, tokens and certificates.

Only what signs or verifies imports this module: a local cloud starts without `cryptography`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID


def new_private_key(bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


def load_private_key(pem: str) -> rsa.RSAPrivateKey:
    private = serialization.load_pem_private_key(pem.encode(), None)
    assert isinstance(private, rsa.RSAPrivateKey)
    return private


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


@lru_cache(maxsize=256)
def public_key(certificate: str) -> rsa.RSAPublicKey:
    """The key of a certificate in PEM format."""
    key = x509.load_pem_x509_certificate(certificate.encode()).public_key()
    assert isinstance(key, rsa.RSAPublicKey)
    return key


def public_pem(certificate: str) -> bytes:
    """The public key of a certificate."""
    return public_key(certificate).public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def public_der(key: rsa.RSAPublicKey) -> bytes:
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def expiry(certificate: str) -> datetime:
    """Until when a certificate is valid."""
    return x509.load_pem_x509_certificate(certificate.encode()).not_valid_after_utc


def is_rsa_certificate(pem: bytes) -> bool:
    """Whether it is an X.509 certificate of an RSA key."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
    except ValueError:
        return False
    return isinstance(certificate.public_key(), rsa.RSAPublicKey)


def verifies(certificate: str, data: bytes, signature: bytes) -> bool:
    """Whether the certificate's key made the signature."""
    try:
        public_key(certificate).verify(signature, data, padding.PKCS1v15(), hashes.SHA256())
    except InvalidSignature:
        return False
    return True


def _encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
