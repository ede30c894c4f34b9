"""Who calls: the cloud's own token, and one for each service account that a machine acts as."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from tpuctl.emulator.status import ApiError
from tpuctl.emulator.store import Store

__all__ = ["OWNER", "Access", "refusal"]

OWNER = "owner@local-cloud.invalid"  # whoever holds the token in the state folder


class Access:
    """Tells callers apart by their bearer tokens. Nothing else opens a door."""

    def __init__(self, token: str, store: Store) -> None:
        self.token = token
        self._store = store
        self._emails = dict(store.rows("SELECT digest, email FROM tokens"))

    @staticmethod
    def read_or_make_token(path: Path) -> str:
        """The token in the file, made with mode 0600 if it is not there yet."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return path.read_text("ascii").strip()
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            token = secrets.token_urlsafe(32)
            file.write(token + "\n")
        return token

    def identify(self, token: str) -> str | None:
        """The e-mail of the token's holder, or None. Takes the same time for every wrong token."""
        if hmac.compare_digest(token.encode(), self.token.encode()):
            return OWNER
        # Looked up by digest, so that timing tells nothing about the tokens themselves.
        return self._emails.get(_digest(token))

    def require(self, authorization: str | None) -> str:
        """The e-mail behind an Authorization header; refuses as Google does."""
        scheme, _, token = (authorization or "").partition(" ")
        email = self.identify(token.strip()) if scheme.lower() == "bearer" else None
        if email is None:
            raise refusal(authorization is not None)
        return email

    def token_for(self, email: str) -> str:
        """The bearer token of a service account; the same one each time."""
        token = "local." + hmac.new(self.token.encode(), email.encode(), hashlib.sha256).hexdigest()
        digest = _digest(token)
        if digest not in self._emails:
            self._store.run("INSERT OR IGNORE INTO tokens VALUES (?,?)", digest, email)
            self._emails[digest] = email
        return token

    def revoke(self, email: str) -> None:
        """Tokens of a deleted account open nothing any more."""
        self._store.run("DELETE FROM tokens WHERE email=?", email)
        self._emails = {key: value for key, value in self._emails.items() if value != email}


def refusal(had_credentials: bool) -> ApiError:
    expected = (
        "Expected OAuth 2 access token, login cookie or other valid authentication credential. "
        "See https://developers.google.com/identity/sign-in/web/devconsole-project."
    )
    if had_credentials:
        return ApiError(
            "UNAUTHENTICATED",
            f"Request had invalid authentication credentials. {expected}",
        )
    return ApiError(
        "UNAUTHENTICATED",
        f"Request is missing required authentication credential. {expected}",
        reason="required",
    )


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
