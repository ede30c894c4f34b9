"""Signed identity tokens of machines, and the certificates to verify them.

As documented for the metadata server's `identity` at
cloud.google.com/compute/docs/instances/verifying-instance-identity; google-auth fetches the
certificates from www.googleapis.com/oauth2/v1/certs (google/oauth2/id_token.py), other libraries
the same keys from /oauth2/v3/certs.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tpuctl.emulator.machines.servers import rsa_keys
from tpuctl.local_cloud.certificate_authority import private_pem
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
            write_private(file, private_pem(rsa_keys.new_private_key()))
        self._key = rsa_keys.load_private_key(file.read_text("ascii"))
        self._public = self._key.public_key()
        self.id = hashlib.sha256(rsa_keys.public_der(self._public)).hexdigest()[:40]

    def sign(self, claims: Mapping[str, Any]) -> str:
        """A JSON Web Token with these claims, valid for an hour from now."""
        now = int(time.time())
        body = {"iss": ISSUER, "iat": now, "exp": now + TOKEN_SECONDS, **claims}
        return rsa_keys.sign_token(self._key, self.id, body)

    def certificates(self) -> dict[str, str]:
        """The certificates by key id."""
        until = datetime.now(UTC) + CERTIFICATE_LIFETIME
        return {self.id: rsa_keys.make_certificate(self._key, "local-cloud.invalid", until)}

    def key_set(self) -> dict[str, Any]:
        """The same keys as a JSON Web Key Set."""
        return rsa_keys.public_key_set({self.id: self._public})


def certificates_for(path: str, home: Path) -> dict[str, Any] | None:
    """The content of Google's public key pages; None for any other path."""
    if path == "/oauth2/v1/certs":
        return IdentityKey(home).certificates()
    if path == "/oauth2/v3/certs":
        return IdentityKey(home).key_set()
    return None
