"""Google's OAuth token endpoints, which exchange credentials files for access tokens.

google-auth calls `oauth2.googleapis.com/token` (google/oauth2/_client.py), TensorFlow
`www.googleapis.com/oauth2/v3/token` and `/v4/token` (its
tensorflow/core/platform/cloud/google_auth_provider.cc), Apache Libcloud
`accounts.google.com/o/oauth2/token` (its libcloud/common/google.py).
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from urllib.parse import parse_qs

from aiohttp import web

from tpuctl.emulator.iam.tokens import AccessTokens
from tpuctl.emulator.machines.servers.identity_tokens import certificates_for
from tpuctl.emulator.state.errors import ApiError

TOKEN_SECONDS = 3600
_CLOUD_PLATFORM_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_PATHS = ("/token", "/oauth2/v3/token", "/oauth2/v4/token", "/o/oauth2/token")
_INFO_PATHS = ("/tokeninfo", "/oauth2/v1/tokeninfo", "/oauth2/v3/tokeninfo")
_MAX_BODY_BYTES = 1 << 16


class OAuthEndpoints:
    """Endpoints that need no credentials: token exchange, token info and certificates."""

    def __init__(self, access: AccessTokens, home: Path) -> None:
        self._access = access
        self._home = home

    async def answer(self, raw: web.BaseRequest, path: str) -> web.Response | None:
        """The response, or None if the path is not one of these."""
        if raw.method == "POST" and path in _PATHS:
            return await _answer_token(raw, self._access)
        if raw.method in ("GET", "POST") and path in _INFO_PATHS:
            return _token_info(raw, self._access)
        if raw.method == "GET" and path.startswith("/oauth2/"):
            certificates = await asyncio.to_thread(certificates_for, path, self._home)
            return None if certificates is None else _json(certificates)
        return None


async def _answer_token(raw: web.BaseRequest, access: AccessTokens) -> web.Response:
    """An access token for a refresh token. The refresh token is itself a valid access token."""
    data = bytearray()
    async for chunk in raw.content.iter_any():
        data += chunk
        if len(data) > _MAX_BODY_BYTES:
            return _refusal("invalid_request", "Request is too long")
    fields = {key: values[-1] for key, values in parse_qs(data.decode("utf-8", "replace")).items()}
    kind = fields.get("grant_type", "")
    if kind != "refresh_token":
        return _refusal("unsupported_grant_type", f"Invalid grant_type: {kind}")
    token = fields.get("refresh_token", "")
    if _email_of(token, access) is None:
        # Google's wording: github.com/googleapis/google-auth-library-python/issues/1043
        return _refusal("invalid_grant", "Bad Request")
    answer = {
        "access_token": token,
        "expires_in": TOKEN_SECONDS - 1,
        "scope": _CLOUD_PLATFORM_SCOPE,
        "token_type": "Bearer",
    }
    return _json(answer)


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


def _refusal(error: str, description: str) -> web.Response:
    return _json({"error": error, "error_description": description}, status=400)


def _json(answer: object, status: int = 200) -> web.Response:
    return web.Response(
        status=status,
        body=json.dumps(answer).encode(),
        content_type="application/json",
        charset="utf-8",
        headers={"Cache-Control": "no-cache, no-store, max-age=0, must-revalidate"},
    )
