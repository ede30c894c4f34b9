"""Certificates for Google's hosts, signed by the local cloud's authority."""

from __future__ import annotations

import hashlib
import ipaddress
import ssl
import struct
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tpuctl.local_cloud.certificate_authority import CLOCK_SKEW, authority_files, private_pem

HOST_LIFETIME = timedelta(days=365)


class Authority:
    """Signs hosts on demand, as the authority of the local cloud with this folder."""

    def __init__(self, home: Path) -> None:
        files = authority_files(home)
        key = serialization.load_pem_private_key(files.key.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key
        self.certificate_pem = files.certificate.read_bytes()
        self._certificate = x509.load_pem_x509_certificate(self.certificate_pem)
        self._contexts: dict[str, ssl.SSLContext] = {}

    def write_folder(self, folder: Path) -> None:
        """Write the authority's certificate to a folder as OpenSSL searches it (SSL_CERT_DIR).

        The file's name is a hash of the subject (X509_NAME_hash of OpenSSL's x_all.c): SHA-1 of its
        encoding without the outer header, in UTF-8, in lower case and without redundant blanks,
        which this authority's has anyway.
        """
        folder.mkdir(exist_ok=True)
        encoded = self._certificate.subject.public_bytes()
        header = len(encoded) - encoded[1]  # the length is one byte
        number = struct.unpack("<I", hashlib.sha1(encoded[header:]).digest()[:4])[0]
        (folder / f"{number:08x}.0").write_bytes(self.certificate_pem)

    def context_for(self, host: str) -> ssl.SSLContext:
        """A server-side TLS context for this host, valid for clients that trust the authority."""
        if host not in self._contexts:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            # gRPC offers HTTP/2 only; clients that support both should use HTTP/1.1.
            context.set_alpn_protocols(["http/1.1", "h2"])
            # The standard library reads keys from files only.
            with tempfile.TemporaryDirectory(prefix="tpuctl-") as folder:
                file = Path(folder) / "host.pem"
                file.touch(0o600)
                file.write_bytes(self._sign(host))
                context.load_cert_chain(file)
            self._contexts[host] = context
        return self._contexts[host]

    def _sign(self, host: str) -> bytes:
        """The host's key and certificate, and the authority's."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        issuer = self._certificate.subject
        authority_key = self._key.public_key()
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])]))
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_SKEW)
            .not_valid_after(now + HOST_LIFETIME)
            .add_extension(x509.SubjectAlternativeName([_general_name(host)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key), False)
            .sign(self._key, hashes.SHA256())
        )
        return (
            private_pem(key).encode()
            + certificate.public_bytes(serialization.Encoding.PEM)
            + self.certificate_pem
        )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
