"""JSON Web Tokens that service accounts sign with their keys.

As google-auth makes them: google/oauth2/service_account.py for the token endpoint and for APIs
(self-signed ones), google/auth/jwt.py.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpuctl.emulator.iam.account_keys import AccountKeys

MAX_SECONDS = 3600
CLOCK_SKEW_SECONDS = 300  # a guess
_TOKEN = re.compile(r"ey[\w-]+\.ey[\w-]+\.[\w-]+")
_API = re.compile(r"https://(?!oauth2\.)[a-z0-9-]+\.googleapis\.com(?:/.*)?")


@dataclass(frozen=True)
class SignedToken:
    """A parsed token, not verified yet."""

    head: Mapping[str, Any]
    claims: Mapping[str, Any]
    _signed: bytes
    _signature: bytes

    @classmethod
    def parse(cls, text: str) -> SignedToken | None:
        """None if it is not a token in RS256."""
        if not _TOKEN.fullmatch(text):
            return None
        signed, _, signature = text.rpartition(".")
        try:
            head, claims = (json.loads(_decoded(part)) for part in signed.split("."))
            token = cls(head, claims, signed.encode(), _decoded(signature))
        except (ValueError, RecursionError):
            return None
        is_valid = isinstance(head, dict) and isinstance(claims, dict)
        return token if is_valid and head.get("alg") == "RS256" else None

    def claim(self, name: str) -> str:
        """A claim that is a text; "" if missing."""
        value = self.claims.get(name)
        return value if isinstance(value, str) else ""

    @property
    def is_current(self) -> bool:
        """Whether it is valid now, and for an hour at most."""
        issued, expires = self.claims.get("iat"), self.claims.get("exp")
        if not isinstance(issued, int | float) or not isinstance(expires, int | float):
            return False
        now = time.time()
        is_short = 0 < expires - issued <= MAX_SECONDS
        return is_short and issued - CLOCK_SKEW_SECONDS <= now < expires + CLOCK_SKEW_SECONDS

    def is_signed_by(self, email: str, keys: AccountKeys) -> bool:
        """Whether the account made it, with the key that it names, if it names one."""
        key_id = self.head.get("kid") or ""
        return isinstance(key_id, str) and keys.verifies(
            email, self._signed, self._signature, key_id
        )

    @property
    def is_for_an_api(self) -> bool:
        """Whether an API accepts it instead of an access token.

        It is for one API, such as `https://tpu.googleapis.com/`, or for scopes:
        google.aip.dev/auth/4111. All of the local cloud's APIs accept one for any of them.
        """
        audience = self.claim("aud")
        is_wanted = bool(_API.fullmatch(audience) if audience else self.claim("scope"))
        return is_wanted and self.claim("sub") == self.claim("iss") and self.is_current


def _decoded(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error as error:
        raise ValueError(text) from error
