"""IAM Service Account Credentials v1.

Lifetimes are checked and reported, but no token of the local cloud expires. Wording without a
source is a guess.
"""

from __future__ import annotations

import asyncio
import re
import time
from itertools import pairwise
from typing import Any

from google.cloud.iam_credentials_v1.types import common as messages

from tpuctl.emulator.iam.policies import ACCOUNTS
from tpuctl.emulator.iam.required_permissions import Need, PolicyResources
from tpuctl.emulator.iam.tokens import is_scope
from tpuctl.emulator.iam_credentials.api import DELEGATION, denied
from tpuctl.emulator.machines.servers.identity_tokens import IdentityKey
from tpuctl.emulator.machines.servers.rsa_keys import load_private_key, sign_token
from tpuctl.emulator.state.errors import ApiError, invalid, missing
from tpuctl.emulator.state.text import parse_json
from tpuctl.emulator.wire.registry import Caller, Registry, Service

_NAME = re.compile(r"projects/-/serviceAccounts/([^/]+)")
_DEFAULT = re.compile(r"([0-9]+)-compute@developer\.gserviceaccount\.com")
_MAX_SECONDS = 3600
_MAX_JWT_SECONDS = 12 * 3600  # of signJwt's claim `exp`: its reference

Account = dict[str, Any]  # email, unique_id ("" if unknown), project, disabled


class CredentialsService(Service):
    """Handlers of google.iam.credentials.v1.IAMCredentials."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self._access = registry.access
        self._resources = PolicyResources(registry.store, registry.projects)

    async def generate_access_token(self, request: Any, caller: Caller) -> Any:
        account = self._account(request, "getAccessToken")
        if not request.scope or not all(map(is_scope, request.scope)):
            raise invalid("Request contains an invalid argument: scope.")
        seconds = request.lifetime.ToSeconds() if request.HasField("lifetime") else _MAX_SECONDS
        if not 0 < seconds <= _MAX_SECONDS:
            raise invalid(f"The lifetime of an access token must be 1 to {_MAX_SECONDS} seconds.")
        token = self._access.token_for(account["email"], request.scope)
        answer = messages.GenerateAccessTokenResponse.pb()(access_token=token)
        answer.expire_time.FromSeconds(int(time.time()) + seconds)
        return answer

    async def generate_id_token(self, request: Any, caller: Caller) -> Any:
        account = self._account(request, "getOpenIdToken")
        if not request.audience:
            raise invalid("Request contains an invalid argument: audience.")
        claims = self._access.identity_claims(
            account["email"], request.audience, with_email=request.include_email
        )
        home = self._registry.home
        token = await asyncio.to_thread(lambda: IdentityKey(home).sign(claims))
        return messages.GenerateIdTokenResponse.pb()(token=token)

    async def sign_blob(self, request: Any, caller: Caller) -> Any:
        account = self._account(request, "signBlob")
        key_id, signature = await self._access.keys.sign(account, request.payload)
        return messages.SignBlobResponse.pb()(key_id=key_id, signed_blob=signature)

    async def sign_jwt(self, request: Any, caller: Caller) -> Any:
        account = self._account(request, "signJwt")
        claims = _claims(request.payload)
        key = await self._access.keys.managed(account)
        signed = sign_token(load_private_key(key["private"]), key["id"], claims)
        return messages.SignJwtResponse.pb()(key_id=key["id"], signed_jwt=signed)

    def _account(self, request: Any, verb: str) -> Account:
        """The account that the request names, which its delegates lead to.

        Each must have the role of a token creator on the next. The guard has checked the caller.
        """
        chain = [self._find(name) for name in (*request.delegates, request.name)]
        for delegate, account in pairwise(chain):
            is_last = account is chain[-1]
            permission = f"iam.serviceAccounts.{verb}" if is_last else DELEGATION
            resource = self._resources.account(account["email"])
            if not self._registry.authority.allows(delegate["email"], permission, resource):
                raise denied(Need(permission, resource, resource))
        for account in chain:
            if account["disabled"]:
                text = f"Service account {account['email']} is disabled."
                raise ApiError("FAILED_PRECONDITION", text)
        self._registry.projects.require(chain[-1]["project"], "iamcredentials.googleapis.com")
        return chain[-1]

    def _find(self, name: str) -> Account:
        """By email or unique ID."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise invalid(
                f"Invalid service account name {name!r}: projects/-/serviceAccounts/EMAIL."
            )
        key = match[1]
        for account in self._registry.store.list_json(ACCOUNTS):
            if key in (account["email"], account["unique_id"]):
                return account
        default = _DEFAULT.fullmatch(key)
        if default is not None and self._access.has_account(key):
            return {"email": key, "unique_id": "", "project": default[1], "disabled": False}
        # From many public reports; the form for an ID is a guess.
        raise missing(f"Not found; Gaia id not found for email {key}")


def _claims(payload: str) -> dict[str, Any]:
    try:
        claims = parse_json(payload.encode())
    except ValueError as error:
        raise invalid(f"The payload is not JSON: {error}") from error
    if not payload or not isinstance(claims, dict):
        raise invalid("The payload is not a JSON object.")
    expires = claims.get("exp", 0)
    if not isinstance(expires, int) or expires > time.time() + _MAX_JWT_SECONDS:
        raise invalid("The claim exp must be a time within the next 12 hours.")
    return claims
