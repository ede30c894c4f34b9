"""Google's OAuth token endpoints, which exchange credentials files for access tokens.

google-auth calls `oauth2.googleapis.com/token` (google/oauth2/_client.py), TensorFlow
`www.googleapis.com/oauth2/v3/token` and `/v4/token` (its
tensorflow/core/platform/cloud/google_auth_provider.cc), Apache Libcloud
`accounts.google.com/o/oauth2/token` (its libcloud/common/google.py).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

from aiohttp import web

from tpuctl.emulator.iam.signed_tokens import SignedToken
from tpuctl.emulator.iam.tokens import AccessTokens, is_scope
from tpuctl.emulator.state.errors import ApiError

TOKEN_SECONDS = 3600
_CLOUD_PLATFORM_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_PATHS = ("/token", "/oauth2/v3/token", "/oauth2/v4/token", "/o/oauth2/token")
_INFO_PATHS = ("/tokeninfo", "/oauth2/v1/tokeninfo", "/oauth2/v3/tokeninfo")
_ASSERTION = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_AUDIENCES = (
    "https://oauth2.googleapis.com/token",
    *(f"https://www.googleapis.com{path}" for path in ("/oauth2/v3/token", "/oauth2/v4/token")),
    "https://accounts.google.com/o/oauth2/token",
)
# The public keys of a service account, as its key file and the reference of signJwt name them.
_ACCOUNT_KEYS = re.compile(
    r"/(?:robot/v1/metadata|service_accounts/v1/metadata|service_accounts/v1)/(x509|jwk)/([^/]+)"
)
_MAX_BODY_BYTES = 1 << 16


class OAuthEndpoints:
    """Endpoints that need no credentials: token exchange, token info and certificates."""

    def __init__(self, access: AccessTokens, home: Path) -> None:
        self._access = access
        self._home = home

    async def answer(self, raw: web.BaseRequest, path: str) -> web.Response | None:
        """The response, or None if the path is not one of these."""
        if raw.method == "POST" and path in _PATHS:
            return await self._answer_token(raw, path)
        if raw.method in ("GET", "POST") and path in _INFO_PATHS:
            return _token_info(raw, self._access)
        if raw.method == "GET" and (match := _ACCOUNT_KEYS.fullmatch(path)) is not None:
            return self._account_keys(match[1], unquote(match[2]))
        if raw.method == "GET" and path.startswith("/oauth2/"):
            from tpuctl.emulator.machines.servers.identity_tokens import certificates_for

            certificates = await asyncio.to_thread(certificates_for, path, self._home)
            return None if certificates is None else _json(certificates)
        return None

    def _account_keys(self, form: str, email: str) -> web.Response:
        keys = self._access.keys
        if not self._access.has_account(email):
            return _json({"error": {"code": 404, "message": "Not found"}}, status=404)
        if form == "jwk":
            from tpuctl.emulator.machines.servers.rsa_keys import public_key_set

            return _json(public_key_set(keys.public_keys(email)))
        return _json({key["id"]: key["certificate"] for key in keys.usable(email)})

    async def _answer_token(self, raw: web.BaseRequest, path: str) -> web.Response:
        data = bytearray()
        async for chunk in raw.content.iter_any():
            data += chunk
            if len(data) > _MAX_BODY_BYTES:
                return _refusal("invalid_request", "Request is too long")
        parsed = parse_qs(data.decode("utf-8", "replace"))
        fields = {key: values[-1] for key, values in parsed.items()}
        kind = fields.get("grant_type", "")
        if kind == "refresh_token":
            return self._refresh(fields.get("refresh_token", ""))
        if kind == _ASSERTION:
            endpoint = f"{raw.url.origin()}{path}"  # of clients whose key file names it
            return await self._exchange(fields.get("assertion", ""), (*_AUDIENCES, endpoint))
        return _refusal("unsupported_grant_type", f"Invalid grant_type: {kind}")

    def _refresh(self, token: str) -> web.Response:
        """An access token for a refresh token, which is itself a valid access token."""
        if _email_of(token, self._access) is None:
            # Google's wording: github.com/googleapis/google-auth-library-python/issues/1043
            return _refusal("invalid_grant", "Bad Request")
        return _json(_token_answer(token) | {"scope": _CLOUD_PLATFORM_SCOPE})

    async def _exchange(self, assertion: str, audiences: Collection[str]) -> web.Response:
        """An access token, or an identity token, for a token that a service account signed.

        developers.google.com/identity/protocols/oauth2/service-account; the wording of errors is
        from many public issues, and that of a disabled account from google-api-ruby-client#720.
        """
        token = SignedToken.parse(assertion)
        if token is None:  # a guess
            return _refusal("invalid_grant", "Invalid JWT: Failed to parse the assertion.")
        email, subject = token.claim("iss"), token.claim("sub")
        if not self._access.has_account(email):
            return _refusal("invalid_grant", "Invalid grant: account not found")
        if self._access.is_disabled(email):
            return _refusal("invalid_grant", "Robot is disabled.")
        if not token.is_signed_by(email, self._access.keys):
            return _refusal("invalid_grant", "Invalid JWT Signature.")
        if token.claim("aud") not in audiences:
            text = f"Failed audience check. The right audience is {_AUDIENCES[0]}"
            return _refusal("invalid_grant", f"Invalid JWT: {text}")
        if not token.is_current:
            return _refusal(
                "invalid_grant",
                "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable "
                "timeframe. Check your iat and exp values in the JWT claim.",
            )
        if subject not in ("", email):  # delegation by the administrator of a domain
            return _refusal("unauthorized_client", _UNAUTHORIZED, status=401)
        if audience := token.claim("target_audience"):
            from tpuctl.emulator.machines.servers.identity_tokens import IdentityKey

            claims = self._access.identity_claims(email, audience)
            signed = await asyncio.to_thread(lambda: IdentityKey(self._home).sign(claims))
            return _json({"id_token": signed})
        scopes = token.claim("scope").split()
        if not scopes or not all(map(is_scope, scopes)):
            text = "Invalid OAuth scope or ID token audience provided."
            return _refusal("invalid_scope", text)
        return _json(_token_answer(self._access.token_for(email, scopes)))


_UNAUTHORIZED = (
    "Client is unauthorized to retrieve access tokens using this method, or client not authorized "
    "for any of the scopes requested."
)


def _token_answer(token: str) -> dict[str, Any]:
    return {"access_token": token, "expires_in": TOKEN_SECONDS - 1, "token_type": "Bearer"}


def _token_info(raw: web.BaseRequest, access: AccessTokens) -> web.Response:
    """Token info, from developers.google.com/identity/protocols/oauth2 and its guides."""
    token = raw.query.get("access_token", "")
    email = _email_of(token, access)
    if email is None:
        return _refusal("invalid_token", "Invalid Value")
    scopes = " ".join(sorted(access.scopes(token))) or _CLOUD_PLATFORM_SCOPE
    seconds = str(TOKEN_SECONDS - 1)
    return _json({"scope": scopes, "expires_in": seconds, "email": email, "email_verified": "true"})


def _email_of(token: str, access: AccessTokens) -> str | None:
    """The email of a token's holder; None if invalid or if the account is disabled or deleted."""
    try:
        return access.identify(token)
    except ApiError:
        return None


def _refusal(error: str, description: str, status: int = 400) -> web.Response:
    return _json({"error": error, "error_description": description}, status=status)


def _json(answer: object, status: int = 200) -> web.Response:
    return web.Response(
        status=status,
        body=json.dumps(answer).encode(),
        content_type="application/json",
        charset="utf-8",
        headers={"Cache-Control": "no-cache, no-store, max-age=0, must-revalidate"},
    )
