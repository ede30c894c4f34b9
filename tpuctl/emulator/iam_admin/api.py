"""Registration of IAM Admin: surfaces, permissions and paces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tpuctl.emulator.iam.api_access import ApiAccess
from tpuctl.emulator.iam.permission_errors import permission_denied
from tpuctl.emulator.iam.required_permissions import Need, PolicyResources
from tpuctl.emulator.iam_admin.rest_rules import IAM
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.wire.google_api import GoogleApi, Surface

_HOST = "iam.googleapis.com"

_ROLE_WORDS = {  # the first from terraform-provider-google#11680; the others by analogy
    "create": "create a role in",
    "list": "list roles in",
    "get": "get the role at",
    "update": "update the role at",
    "delete": "delete the role at",
    "undelete": "undelete the role at",
}


def _refuse(method: str, need: Need, email: str, request: Any) -> ApiError:
    """Wording that gcloud prints in many public issues."""
    kind, _, verb = need.permission.rpartition(".")
    if kind == "iam.roles":
        text = f"You don't have permission to {_ROLE_WORDS[verb]} {need.resource_name}."
        return ApiError("PERMISSION_DENIED", text)
    text = f"Permission '{need.permission}' denied on resource (or it may not exist)."
    return permission_denied(text, need, _HOST)


def _deleted_account(resources: PolicyResources, request: Any) -> Iterator[Need]:
    name = request.name.rpartition("/")[2]
    resource = resources.account(name)
    yield Need("iam.serviceAccounts.undelete", resource, request.name)


_ACCESS = ApiAccess(
    package=__package__,
    host=_HOST,
    methods=("google.iam.admin.",),
    refuse=_refuse,
    rules={"deleted_account": _deleted_account},
)

_PACES = {
    # From creation until policies accept them; 0 where the delay is not worth watching. A new role
    # was refused for 12 to 18 seconds in one public report; the delay of accounts is a guess.
    "identity.roles.visible": (0.0, 15.0),
    "identity.accounts.visible": (0.0, 5.0),
}

API = GoogleApi(
    access=_ACCESS,
    services={"identity": "tpuctl.emulator.iam_admin.service:IdentityService"},
    documents={"iam.v1": "IAM v1"},
    surfaces=(
        Surface(
            "google.iam.admin.v1.IAM",
            "google.cloud.iam_admin_v1.services.iam",
            "identity",
            r"/v1/(?:projects/[^/]+/(?:serviceAccounts|roles)"
            r"|organizations/[^/]+/roles|roles|permissions)",
            family="both",
            api=_ACCESS.host,
            rest_rules=IAM,
        ),
    ),
    paces=_PACES,
)
