"""Registration of IAM Service Account Credentials: its surface and permissions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tpuctl.emulator.iam.api_access import ApiAccess
from tpuctl.emulator.iam.permission_errors import permission_denied
from tpuctl.emulator.iam.required_permissions import Need, PolicyResources
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.wire.google_api import GoogleApi, Surface

DELEGATION = "iam.serviceAccounts.implicitDelegation"


def denied(need: Need) -> ApiError:
    """As in google-github-actions/auth#340 and many other issues."""
    text = f"Permission '{need.permission}' denied on resource (or it may not exist)."
    return permission_denied(text, need, "iam.googleapis.com")


def _refuse(method: str, need: Need, email: str, request: Any) -> ApiError:
    return denied(need)


def _on_account(verb: str) -> Callable[[PolicyResources, Any], Iterator[Need]]:
    """A permission on the account, or delegation by the first of the chain that leads to it."""

    def required(resources: PolicyResources, request: Any) -> Iterator[Need]:
        name = request.delegates[0] if request.delegates else request.name
        permission = DELEGATION if request.delegates else f"iam.serviceAccounts.{verb}"
        yield Need(permission, resources.account(name.rpartition("/")[2]), name)

    return required


_ACCESS = ApiAccess(
    package=__package__,
    host="iamcredentials.googleapis.com",
    methods=("google.iam.credentials.",),
    refuse=_refuse,
    rules={
        "get_access_token": _on_account("getAccessToken"),
        "get_open_id_token": _on_account("getOpenIdToken"),
        "sign_blob": _on_account("signBlob"),
        "sign_jwt": _on_account("signJwt"),
    },
    scopes=("iam",),
)

API = GoogleApi(
    access=_ACCESS,
    services={"iamcredentials": "tpuctl.emulator.iam_credentials.service:CredentialsService"},
    documents={"iamcredentials.v1": "IAM Service Account Credentials v1"},
    surfaces=(
        Surface(
            "google.iam.credentials.v1.IAMCredentials",
            "google.cloud.iam_credentials_v1.services.iam_credentials",
            "iamcredentials",
            r"/v1/projects/[^/]+/serviceAccounts/[^/]+:(?:generate|sign)",
            family="both",
        ),
    ),
)
