"""Errors for missing permissions and scopes, in the forms that several APIs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tpuctl.emulator.iam.required_permissions import Need
from tpuctl.emulator.state.errors import ApiError, error_info


def permission_denied(text: str, need: Need, domain: str, resource_name: str = "") -> ApiError:
    """Details as described in googleapis/…/google/api/error_reason.proto; the domain is the
    API's in public reports (GoogleCloudPlatform/t5x-on-vertex-ai#5)."""
    metadata = {"permission": need.permission}
    if resource_name:
        metadata["resource"] = resource_name
    info = error_info("IAM_PERMISSION_DENIED", domain, **metadata)
    return ApiError("PERMISSION_DENIED", text, details=[info])


def platform_denied(host: str) -> Callable[[str, Need, str, Any], ApiError]:
    """From t5x-on-vertex-ai#5, and falcon-integration-gateway#98 for Resource Manager.

    For Cloud TPU only an older form without the host is known (tensorflow/tpu#296, 2019).
    """

    def deny(method: str, need: Need, email: str, request: Any) -> ApiError:
        text = (
            f"Permission '{need.permission}' denied on resource '//{host}/{need.resource_name}' "
            "(or it may not exist)."
        )
        return permission_denied(text, need, host, need.resource_name)

    return deny


def act_as_denied(need: Need) -> ApiError:
    """The platform's wording, seen for Cloud Run in many public issues; Cloud TPU's is not
    known."""
    text = (
        f"Permission '{need.permission}' denied on service account {need.resource_name} (or it may "
        "not exist)."
    )
    return permission_denied(
        text, need, "iam.googleapis.com", f"projects/-/serviceAccounts/{need.resource_name}"
    )


def insufficient_scopes(method: str, host: str) -> ApiError:
    """google/api/error_reason.proto; for Cloud Storage googleapis/google-cloud-cpp#7334."""
    if method.startswith("storage."):
        text = "Provided scope(s) are not authorized"
        return ApiError("PERMISSION_DENIED", text, reason="forbidden")
    reason, method = "ACCESS_TOKEN_SCOPE_INSUFFICIENT", method.replace("/", ".")
    info = error_info(reason, "googleapis.com", service=host, method=method)
    return ApiError(
        "PERMISSION_DENIED",
        "Request had insufficient authentication scopes.",
        reason="insufficientPermissions",
        details=[info],
    )
