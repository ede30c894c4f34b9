"""How APIs refuse a caller who lacks a permission: the forms that several of them share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tpuctl.emulator.iam.required_permissions import Need
from tpuctl.emulator.state.errors import ApiError

__all__ = ["denied", "not_to_act_as", "on_platform", "out_of_scope"]

_TYPE = "type.googleapis.com/google.rpc."


def denied(text: str, need: Need, domain: str, told: str = "") -> ApiError:
    """With the details that googleapis/…/google/api/error_reason.proto describes; their domain is
    that of the API in public reports (GoogleCloudPlatform/t5x-on-vertex-ai#5)."""
    metadata = {"permission": need.permission, **({"resource": told} if told else {})}
    info = {
        "@type": f"{_TYPE}ErrorInfo",
        "reason": "IAM_PERMISSION_DENIED",
        "domain": domain,
        "metadata": metadata,
    }
    return ApiError("PERMISSION_DENIED", text, details=[info])


def on_platform(host: str) -> Callable[[str, Need, str, Any], ApiError]:
    """t5x-on-vertex-ai#5, and falcon-integration-gateway#98 for Resource Manager.

    Of Cloud TPU only an older form was found, without the host (tensorflow/tpu#296, 2019).
    """

    def say(method: str, need: Need, email: str, request: Any) -> ApiError:
        text = (
            f"Permission '{need.permission}' denied on resource '//{host}/{need.told}' "
            "(or it may not exist)."
        )
        return denied(text, need, host, need.told)

    return say


def not_to_act_as(need: Need) -> ApiError:
    """What APIs on the platform say, as Cloud Run in many public issues; Cloud TPU's own words
    were not found."""
    text = (
        f"Permission '{need.permission}' denied on service account {need.told} (or it may not "
        "exist)."
    )
    return denied(text, need, "iam.googleapis.com", f"projects/-/serviceAccounts/{need.told}")


def out_of_scope(method: str, host: str) -> ApiError:
    """google/api/error_reason.proto; Cloud Storage's words: googleapis/google-cloud-cpp#7334."""
    if method.startswith("storage."):
        text = "Provided scope(s) are not authorized"
        return ApiError("PERMISSION_DENIED", text, reason="forbidden")
    info = {
        "@type": f"{_TYPE}ErrorInfo",
        "reason": "ACCESS_TOKEN_SCOPE_INSUFFICIENT",
        "domain": "googleapis.com",
        "metadata": {"service": host, "method": method.replace("/", ".")},
    }
    return ApiError(
        "PERMISSION_DENIED",
        "Request had insufficient authentication scopes.",
        reason="insufficientPermissions",
        details=[info],
    )
