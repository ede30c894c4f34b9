"""Access tokens: the cloud's own, and one for each account or user that was issued one.

Accounts with keys may also sign tokens themselves.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tpuctl.emulator.iam.account_keys import AccountKeys
from tpuctl.emulator.iam.signed_tokens import SignedToken
from tpuctl.emulator.machines.servers.metadata_tree import numeric_id
from tpuctl.emulator.state.errors import ApiError, error_info
from tpuctl.emulator.state.store import Store
from tpuctl.local_cloud.defaults import OWNER

# Kinds in the store: service accounts by name, and deleted ones by unique ID.
_ACCOUNTS, _DELETED = "account", "account-deleted"
_ACCOUNT = re.compile(r"[^@]+@([^@.]+)\.iam\.gserviceaccount\.com")
_SCOPE = re.compile(
    r"https://(?:www\.googleapis\.com/auth|mail\.google\.com)/\S*|openid|email|profile"
)
_DEFAULT = re.compile(r"([0-9]+)-compute@developer\.gserviceaccount\.com")


class AccessTokens:
    """Identifies callers by bearer token."""

    def __init__(self, token: str, store: Store) -> None:
        self.token = token
        self.keys = AccountKeys(store)
        self._store = store
        self._emails: dict[str, str] = dict(store.rows("SELECT digest, email FROM tokens"))
        self._scopes: dict[str, frozenset[str]] = {}  # cache, by digest

    @staticmethod
    def read_or_create_token(path: Path) -> str:
        """The token in the file, which is created with mode 0600 if missing.

        The file is created atomically: a kill must not leave an empty one, which would admit
        callers without a token.
        """
        if path.exists() and (existing := path.read_text("ascii").strip()):
            return existing
        token = secrets.token_urlsafe(32)
        draft = path.with_name(path.name + ".draft")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(token + "\n")
        draft.replace(path)
        return token

    def identify(self, token: str) -> str | None:
        """The email of the token's holder, or None. Constant time for the owner's token.

        Raises ApiError if the account is disabled or deleted.
        """
        if hmac.compare_digest(token.encode(), self.token.encode()):
            return OWNER
        # Looked up by digest, so that timing reveals nothing about the tokens.
        email = self._emails.get(_digest(token))
        if email is None and (signed := self._self_signed(token)) is not None:
            email = signed.claim("iss")
        if email is not None and self.is_disabled(email):
            raise refusal(True, email)
        return email

    def _self_signed(self, token: str) -> SignedToken | None:
        """The token if an account signed it for an API."""
        signed = SignedToken.parse(token)
        if signed is None or not signed.is_for_an_api:
            return None
        return signed if signed.is_signed_by(signed.claim("iss"), self.keys) else None

    def scopes(self, token: str) -> frozenset[str]:
        """The scopes that the token is limited to; empty if it is not limited."""
        digest = _digest(token)
        if digest not in self._emails:
            signed = self._self_signed(token)
            return frozenset(signed.claim("scope").split()) if signed else frozenset()
        if digest not in self._scopes:
            row = self._store.row("SELECT scopes FROM token_scopes WHERE digest=?", digest)
            self._scopes[digest] = frozenset(row[0].split()) if row else frozenset()
        return self._scopes[digest]

    def require(self, authorization: str | None) -> str:
        """The email of an Authorization header; raises Google's error if invalid."""
        scheme, _, token = (authorization or "").partition(" ")
        email = self.identify(token.strip()) if scheme.lower() == "bearer" else None
        if email is None:
            raise refusal(authorization is not None)
        return email

    def token_for(self, email: str, scopes: Iterable[str] = ()) -> str:
        """The bearer token of an account or user; always the same one.

        With scopes, the token is limited to them. A recreated account gets a new token.
        """
        limits = " ".join(sorted({*scopes}))
        account = self._account(email) or {}
        text = " ".join(filter(None, (email, account.get("unique_id", ""), limits)))
        token = "local." + hmac.new(self.token.encode(), text.encode(), hashlib.sha256).hexdigest()
        digest = _digest(token)
        if digest not in self._emails:
            with self._store.transaction():
                self._store.run("INSERT OR IGNORE INTO tokens VALUES (?,?)", digest, email)
                if limits:
                    values = (digest, limits)
                    self._store.run("INSERT OR IGNORE INTO token_scopes VALUES (?,?)", *values)
            self._emails[digest] = email
        return token

    def revoke(self, email: str) -> None:
        """Invalidate the tokens and keys of a deleted account."""
        self.keys.delete_all(email)
        digests = [digest for digest, owner in self._emails.items() if owner == email]
        self._store.run("DELETE FROM tokens WHERE email=?", email)
        for digest in digests:
            self._store.run("DELETE FROM token_scopes WHERE digest=?", digest)
            del self._emails[digest]
            self._scopes.pop(digest, None)

    def has_account(self, email: str) -> bool:
        """Whether it is a service account that exists; default ones do in their projects."""
        if (match := _DEFAULT.fullmatch(email)) is not None:
            return self._store.get("project-number", match[1]) is not None
        return self._account(email) is not None

    def identity_claims(
        self, email: str, audience: str, *, with_email: bool = True
    ) -> dict[str, Any]:
        """The claims of an account's identity token."""
        unique_id = (self._account(email) or {}).get("unique_id") or str(numeric_id(email))
        claims: dict[str, Any] = {"aud": audience, "azp": unique_id, "sub": unique_id}
        return claims | ({"email": email, "email_verified": True} if with_email else {})

    def _account(self, email: str) -> Mapping[str, Any] | None:
        match = _ACCOUNT.fullmatch(email)
        if match is None:
            return None
        return self._store.get_json(_ACCOUNTS, f"projects/{match[1]}/serviceAccounts/{email}")

    def is_disabled(self, email: str) -> bool:
        """Whether it is a service account that was disabled or deleted."""
        if not _ACCOUNT.fullmatch(email):
            return False
        account = self._account(email)
        if account is not None:
            return bool(account["disabled"])
        return any(deleted["email"] == email for deleted in self._store.list_json(_DELETED))


def refusal(had_credentials: bool, disabled_email: str = "") -> ApiError:
    """The error for a caller that cannot be identified; `disabled_email` names a disabled or
    deleted account (google/api/error_reason.proto, ACCOUNT_STATE_INVALID)."""
    expected = (
        "Expected OAuth 2 access token, login cookie or other valid authentication credential. "
        "See https://developers.google.com/identity/sign-in/web/devconsole-project."
    )
    if had_credentials:
        info = error_info("ACCOUNT_STATE_INVALID", "googleapis.com", email=disabled_email)
        return ApiError(
            "UNAUTHENTICATED",
            f"Request had invalid authentication credentials. {expected}",
            details=[info] if disabled_email else (),
        )
    return ApiError(
        "UNAUTHENTICATED",
        f"Request is missing required authentication credential. {expected}",
        reason="required",
    )


def is_scope(text: str) -> bool:
    """Whether it has the form of an access scope."""
    return _SCOPE.fullmatch(text) is not None


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
