"""The identity behind the caller's credentials, from Google's tokeninfo endpoint, and what it may
do in a project."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tpuctl.cloud.clients import Cloud
from tpuctl.errors import Denied, TpuctlError, Usage
from tpuctl.user_account import user_at_host

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
# The audience of a federated credential, a provider of the pool. The principals of a pool are from
# cloud.google.com/iam/docs/principal-identifiers.
POOL = re.compile(
    r"//iam\.googleapis\.com/((?:projects/[^/]+/)?locations/[^/]+/work\w+Pools/[^/]+)/providers/"
)
SIGN_IN_HINT = "Sign in with\n    gcloud auth application-default login"


@dataclass(frozen=True)
class Identity:
    """The caller; the email is empty if the token does not carry it."""

    email: str
    kind: str
    quota_project: str = ""
    expires_in: int | None = None  # seconds until the token expires
    pool: str = ""  # of a federated identity, as its resource name

    @property
    def is_user(self) -> bool:
        return self.kind == "user" and not self.email.endswith(".gserviceaccount.com")

    @property
    def member(self) -> str:
        """The IAM policy member."""
        if not self.email and self.pool:
            return f"principal://iam.googleapis.com/{self.pool}/subject/SUBJECT"
        if not self.email:
            return "user:YOU" if self.is_user else "serviceAccount:YOU"
        return f"{'user' if self.is_user else 'serviceAccount'}:{self.email}"


async def identity_of(cloud: Cloud) -> Identity:
    """Get a token and look up its owner. Raises Denied without valid credentials."""
    token = await cloud.access_token()
    rest, credentials = cloud.client("rest"), cloud.credentials
    email = str(getattr(credentials, "service_account_email", "") or "")
    seconds = None
    try:
        token_info: Any = await cloud.call(
            "your token", rest.call, "GET", "oauth2", "/tokeninfo", query={"access_token": token}
        )
    except Usage as error:  # Google rejects an expired token with 400 invalid_token
        raise Denied(
            "Not signed in", "Google no longer accepts your credentials' token", hint=SIGN_IN_HINT
        ) from error
    except TpuctlError:
        token_info = {}
    email = str(token_info.get("email") or email)
    if str(token_info.get("expires_in", "")).isdigit():
        seconds = int(token_info["expires_in"])
    return Identity(
        "" if email == "default" else email,
        KINDS.get(type(credentials).__module__, "credentials"),
        str(getattr(credentials, "quota_project_id", "") or ""),
        seconds,
        pool_of(credentials),
    )


def principal_of(cloud: Cloud) -> str:
    """The service account, or the pool of federated identities, that calls act as, without asking
    for it; "" if the credentials do not say it, as those of a person."""
    if cloud.endpoint.impersonate:
        return cloud.endpoint.impersonate
    email = str(getattr(cloud.credentials, "service_account_email", "") or "")
    if "@" in email:  # a machine's account is "default" at first
        return email
    pool = pool_of(cloud.credentials)
    return f"principalSet://iam.googleapis.com/{pool}/*" if pool else ""


def acting_user(cloud: Cloud) -> str:
    """USER@HOST of this process, and as whom it acts, for records."""
    principal = principal_of(cloud)
    return f"{user_at_host()} as {principal}" if principal else user_at_host()


async def granted_on_project(
    cloud: Cloud, project: str, names: Collection[str], *, subject: str = "permissions"
) -> set[str]:
    """Those of the permissions that the caller has in a project."""
    request = {"resource": f"projects/{project}", "permissions": list(names)}
    test = cloud.client("projects").test_iam_permissions
    return {*(await cloud.call(subject, test, request)).permissions}


def pool_of(credentials: Any) -> str:
    """The pool of a federated credential; "" if it is none."""
    audience = getattr(credentials, "info", {}).get("audience") or ""
    match = POOL.match(audience)
    return match[1] if match else ""
