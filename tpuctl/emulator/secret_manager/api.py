"""Registration of Secret Manager: surfaces, permissions and paces."""

from __future__ import annotations

from typing import Any

from tpuctl.emulator.iam.api_access import ApiAccess
from tpuctl.emulator.iam.permission_errors import permission_denied
from tpuctl.emulator.iam.required_permissions import Need
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.wire.google_api import GoogleApi, Surface

_HOST = "secretmanager.googleapis.com"


def _refuse(method: str, need: Need, email: str, request: Any) -> ApiError:
    """Wording from many public issues."""
    text = (
        f"Permission '{need.permission}' denied for resource '{need.resource_name}' "
        "(or it may not exist)."
    )
    return permission_denied(text, need, _HOST, need.resource_name)


_ACCESS = ApiAccess(
    package=__package__,
    host=_HOST,
    methods=("google.cloud.secretmanager.",),
    refuse=_refuse,
)

API = GoogleApi(
    access=_ACCESS,
    services={"secrets": "tpuctl.emulator.secret_manager.service:SecretsService"},
    documents={"secretmanager.v1": "Secret Manager v1"},
    surfaces=(
        Surface(
            "google.cloud.secretmanager.v1.SecretManagerService",
            "google.cloud.secretmanager_v1.services.secret_manager_service",
            "secrets",
            r"/v1/projects/[^/]+/secrets",
            api=_ACCESS.host,
        ),
    ),
)
