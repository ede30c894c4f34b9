"""The certificate authority of a local cloud, which its clients trust: its key and its certificate.

They are created when first needed, by the server or by a client; `cryptography` is imported then.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.local_cloud.gateway_address import write_private

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

CLOCK_SKEW = timedelta(days=1)
_LIFETIME = timedelta(days=3650)
_NAME = "tpuctl local cloud (this computer only)"


@dataclass(frozen=True)
class AuthorityFiles:
    """The private key, which only the user may read, and the certificate, both in PEM format."""

    key: Path
    certificate: Path


def authority_files(home: Path) -> AuthorityFiles:
    """The authority of the local cloud with this folder, created if there is none yet."""
    folder = home / "authority"
    files = AuthorityFiles(folder / "authority.key", folder / "authority.pem")
    if not files.certificate.exists():
        from filelock import FileLock

        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(folder / "lock"):
            if not files.certificate.exists():
                _create(files)
    return files


def _create(files: AuthorityFiles) -> None:
    """The certificate last: with it, both are there."""
    from datetime import UTC, datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
    now = datetime.now(UTC)
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .sign(key, hashes.SHA256())
    )
    write_private(files.key, private_pem(key))
    write_private(files.certificate, certificate.public_bytes(serialization.Encoding.PEM).decode())


def private_pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> str:
    """A private key, not encrypted, in PEM format."""
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
