"""Who may call IAM Admin, and how it refuses the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tpuctl.emulator.iam.api_access import ApiAccess
from tpuctl.emulator.iam.refusals import denied
from tpuctl.emulator.iam.required_permissions import Need, Places
from tpuctl.emulator.state.errors import ApiError

__all__ = ["ACCESS"]

_HOST = "iam.googleapis.com"

_ROLE_WORDS = {  # the first from terraform-provider-google#11680; the others after it
    "create": "create a role in",
    "list": "list roles in",
    "get": "get the role at",
    "update": "update the role at",
    "delete": "delete the role at",
    "undelete": "undelete the role at",
}


def _refuse(method: str, need: Need, email: str, request: Any) -> ApiError:
    """As gcloud shows it in many public issues."""
    kind, _, verb = need.permission.rpartition(".")
    if kind == "iam.roles":
        text = f"You don't have permission to {_ROLE_WORDS[verb]} {need.told}."
        return ApiError("PERMISSION_DENIED", text)
    text = f"Permission '{need.permission}' denied on resource (or it may not exist)."
    return denied(text, need, _HOST)


def _deleted_account(places: Places, request: Any) -> Iterator[Need]:
    name = request.name.rpartition("/")[2]
    resource = places.account(name)
    yield Need("iam.serviceAccounts.undelete", resource, request.name)


ACCESS = ApiAccess(
    package=__package__,
    host=_HOST,
    methods=("google.iam.admin.",),
    refuse=_refuse,
    rules={"deleted_account": _deleted_account},
)
