"""Who calls: the cloud's own token, and one for each account or person that was given one."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.state.projects import OWNER
from tpuctl.emulator.state.store import Store

__all__ = ["Access", "refusal"]

# Kinds of the store: service accounts by name, and deleted ones by unique id.
_ACCOUNTS, _DELETED = "account", "account-deleted"
_ACCOUNT = re.compile(r"[^@]+@([^@.]+)\.iam\.gserviceaccount\.com")


class Access:
    """Tells callers apart by their bearer tokens. Nothing else opens a door."""

    def __init__(self, token: str, store: Store) -> None:
        self.token = token
        self._store = store
        self._emails: dict[str, str] = dict(store.rows("SELECT digest, email FROM tokens"))
        self._scopes: dict[str, frozenset[str]] = {}  # by digest, as far as they were asked for

    @staticmethod
    def read_or_make_token(path: Path) -> str:
        """The token in the file, made with mode 0600 if it is not there yet.

        The file appears with the token in it: a kill leaves none that is empty, which would let
        in who has none.
        """
        if path.exists() and (found := path.read_text("ascii").strip()):
            return found
        token = secrets.token_urlsafe(32)
        draft = path.with_name(path.name + ".draft")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(token + "\n")
        draft.replace(path)
        return token

    def identify(self, token: str) -> str | None:
        """The e-mail of the token's holder, or None. Takes the same time for every wrong token.

        Raises ApiError for the token of an account that is disabled or deleted.
        """
        if hmac.compare_digest(token.encode(), self.token.encode()):
            return OWNER
        # Looked up by digest, so that timing tells nothing about the tokens themselves.
        email = self._emails.get(_digest(token))
        if email is not None and self._is_closed(email):
            raise refusal(True, email)
        return email

    def scopes(self, token: str) -> frozenset[str]:
        """What the token is limited to; nothing for one that is not."""
        digest = _digest(token)
        if digest not in self._emails:
            return frozenset()
        if digest not in self._scopes:
            row = self._store.row("SELECT scopes FROM token_scopes WHERE digest=?", digest)
            self._scopes[digest] = frozenset(row[0].split()) if row else frozenset()
        return self._scopes[digest]

    def require(self, authorization: str | None) -> str:
        """The e-mail behind an Authorization header; refuses as Google does."""
        scheme, _, token = (authorization or "").partition(" ")
        email = self.identify(token.strip()) if scheme.lower() == "bearer" else None
        if email is None:
            raise refusal(authorization is not None)
        return email

    def token_for(self, email: str, scopes: Iterable[str] = ()) -> str:
        """The bearer token of an account or a person; the same one each time.

        With scopes, it opens no more than these do. An account that was deleted has other tokens
        when it is made again.
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
        """Tokens of a deleted account open nothing any more."""
        gone = [digest for digest, owner in self._emails.items() if owner == email]
        self._store.run("DELETE FROM tokens WHERE email=?", email)
        for digest in gone:
            self._store.run("DELETE FROM token_scopes WHERE digest=?", digest)
            del self._emails[digest]
            self._scopes.pop(digest, None)

    def _account(self, email: str) -> Mapping[str, Any] | None:
        found = _ACCOUNT.fullmatch(email)
        if found is None:
            return None
        return self._store.get_json(_ACCOUNTS, f"projects/{found[1]}/serviceAccounts/{email}")

    def _is_closed(self, email: str) -> bool:
        """Whether it is an account that was disabled or deleted. Nobody else can be either."""
        if not _ACCOUNT.fullmatch(email):
            return False
        account = self._account(email)
        if account is not None:
            return bool(account["disabled"])
        return any(one["email"] == email for one in self._store.list_json(_DELETED))


def refusal(had_credentials: bool, closed: str = "") -> ApiError:
    """What a caller is told who cannot be identified; `closed` is the e-mail of an account that
    is disabled or deleted (google/api/error_reason.proto, ACCOUNT_STATE_INVALID)."""
    expected = (
        "Expected OAuth 2 access token, login cookie or other valid authentication credential. "
        "See https://developers.google.com/identity/sign-in/web/devconsole-project."
    )
    if had_credentials:
        info = {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "ACCOUNT_STATE_INVALID",
            "domain": "googleapis.com",
            "metadata": {"email": closed},
        }
        return ApiError(
            "UNAUTHENTICATED",
            f"Request had invalid authentication credentials. {expected}",
            details=[info] if closed else (),
        )
    return ApiError(
        "UNAUTHENTICATED",
        f"Request is missing required authentication credential. {expected}",
        reason="required",
    )


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
