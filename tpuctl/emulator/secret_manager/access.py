"""Who may call Secret Manager, and how it refuses the others."""

from __future__ import annotations

from typing import Any

from tpuctl.emulator.iam.api_access import ApiAccess
from tpuctl.emulator.iam.refusals import denied
from tpuctl.emulator.iam.required_permissions import Need
from tpuctl.emulator.state.errors import ApiError

__all__ = ["ACCESS"]

_HOST = "secretmanager.googleapis.com"


def _refuse(method: str, need: Need, email: str, request: Any) -> ApiError:
    """As in hundreds of public issues."""
    text = (
        f"Permission '{need.permission}' denied for resource '{need.told}' (or it may not exist)."
    )
    return denied(text, need, _HOST, need.told)


ACCESS = ApiAccess(
    package=__package__,
    host=_HOST,
    methods=("google.cloud.secretmanager.",),
    refuse=_refuse,
)
