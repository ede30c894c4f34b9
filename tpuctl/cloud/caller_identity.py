"""Whose credentials are used, as Google tells it: nothing is sent but the token itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tpuctl.cloud.clients import Cloud
from tpuctl.errors import Denied, TpuctlError, Usage

__all__ = ["Identity", "identity_of"]

# google-auth's classes by their modules.
KINDS = {
    "google.oauth2.credentials": "user",
    "google.oauth2.service_account": "service account key",
    "google.auth.compute_engine.credentials": "this machine's account",
    "google.auth.identity_pool": "workload identity federation",
    "google.auth.pluggable": "workload identity federation",
    "google.auth.aws": "workload identity federation",
    "google.auth.external_account_authorized_user": "workforce identity",
    "google.auth.impersonated_credentials": "impersonation",
}
AGAIN = "Sign in with\n    gcloud auth application-default login"


@dataclass(frozen=True)
class Identity:
    """Who calls; the e-mail is empty where a token does not tell it."""

    email: str
    kind: str
    quota_project: str = ""
    seconds: int | None = None  # until the token ends

    @property
    def is_user(self) -> bool:
        return self.kind == "user" and not self.email.endswith(".gserviceaccount.com")

    @property
    def member(self) -> str:
        """As policies name it."""
        if not self.email:
            return "user:YOU" if self.is_user else "serviceAccount:YOU"
        return f"{'user' if self.is_user else 'serviceAccount'}:{self.email}"


async def identity_of(cloud: Cloud) -> Identity:
    """Get a token and ask whose it is. Raises Denied where there is none to be had."""
    token = await cloud.access_token()
    rest, credentials = cloud.client("rest"), cloud.credentials
    email = str(getattr(credentials, "service_account_email", "") or "")
    seconds = None
    try:
        told: Any = await cloud.call(
            "your token", rest.call, "GET", "oauth2", "/tokeninfo", query={"access_token": token}
        )
    except Usage as error:  # Google's answer to a token that is none any more: 400 invalid_token
        raise Denied(
            "Not signed in", "your credentials' token is not accepted any more", hint=AGAIN
        ) from error
    except TpuctlError:
        told = {}
    email = str(told.get("email") or email)
    if str(told.get("expires_in", "")).isdigit():
        seconds = int(told["expires_in"])
    return Identity(
        "" if email == "default" else email,
        KINDS.get(type(credentials).__module__, "credentials"),
        str(getattr(credentials, "quota_project_id", "") or ""),
        seconds,
    )
