"""How each API refuses a caller who lacks a permission."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tpuctl.emulator.faults.google_messages import refusal
from tpuctl.emulator.iam.required_permissions import Need
from tpuctl.emulator.state.errors import ApiError

__all__ = ["out_of_scope", "refused"]

_TYPE = "type.googleapis.com/google.rpc."
_PLAIN = "The caller does not have permission"


def refused(method: str, need: Need, email: str, request: Any) -> ApiError:
    """The refusal of a call by the API that it is of."""
    service = method.rpartition("/")[0]
    if need.kind == "actas":
        return _not_to_act_as(service, need, email)
    for start, say in _WORDS.items():
        if service.startswith(start):
            return say(method, need, request)
    return ApiError("PERMISSION_DENIED", _PLAIN)


def _denied(text: str, need: Need, domain: str, told: str = "") -> ApiError:
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


def _on_platform(host: str) -> Callable[[str, Need, Any], ApiError]:
    """t5x-on-vertex-ai#5, and falcon-integration-gateway#98 for Resource Manager.

    Of Cloud TPU only an older form was found, without the host (tensorflow/tpu#296, 2019).
    """

    def say(method: str, need: Need, request: Any) -> ApiError:
        text = (
            f"Permission '{need.permission}' denied on resource '//{host}/{need.told}' "
            "(or it may not exist)."
        )
        return _denied(text, need, host, need.told)

    return say


def _of_older_manager(method: str, need: Need, request: Any) -> ApiError:
    """GoogleCloudPlatform/avocano#551, terraform-google-project-factory#558."""
    text = "Policy update access denied." if method.endswith("/SetIamPolicy") else _PLAIN
    return ApiError("PERMISSION_DENIED", text)


def _of_manager(method: str, need: Need, request: Any) -> ApiError:
    if method.endswith("/CreateProject"):
        return ApiError("PERMISSION_DENIED", _PLAIN)  # terraform-google-project-factory#558
    return _on_platform("cloudresourcemanager.googleapis.com")(method, need, request)


_ROLE_WORDS = {  # the first from terraform-provider-google#11680; the others after it
    "create": "create a role in",
    "list": "list roles in",
    "get": "get the role at",
    "update": "update the role at",
    "delete": "delete the role at",
    "undelete": "undelete the role at",
}


def _of_identity(method: str, need: Need, request: Any) -> ApiError:
    """As gcloud shows it in many public issues."""
    kind, _, verb = need.permission.rpartition(".")
    if kind == "iam.roles":
        text = f"You don't have permission to {_ROLE_WORDS[verb]} {need.told}."
        return ApiError("PERMISSION_DENIED", text)
    text = f"Permission '{need.permission}' denied on resource (or it may not exist)."
    return _denied(text, need, "iam.googleapis.com")


def _of_services(method: str, need: Need, request: Any) -> ApiError:
    """su-kaka/gcli2api#283 and aquasecurity/cloudsploit#1606; the other verbs after these."""
    kind, _, verb = need.permission.rpartition(".")
    found = re.search(r"/services/([^/:]+)", need.told)
    apis = list(getattr(request, "service_ids", ())) or ([found[1]] if found else [])
    if kind != "serviceusage.services":
        return _on_platform("serviceusage.googleapis.com")(method, need, request)
    if verb == "list":
        text = f"Permission denied to list services for consumer container [{need.told}]"
    else:
        text = f"Permission denied to {verb} service [{', '.join(apis)}]"
    details: list[Mapping[str, Any]] = [
        {
            "@type": f"{_TYPE}PreconditionFailure",
            "violations": [{"type": "googleapis.com", "subject": "110002"}],
        },
        {
            "@type": f"{_TYPE}ErrorInfo",
            "reason": "AUTH_PERMISSION_DENIED",
            "domain": "serviceusage.googleapis.com",
        },
    ]
    return ApiError("PERMISSION_DENIED", text, details=details)


def _of_compute(method: str, need: Need, request: Any) -> ApiError:
    """As in hundreds of public issues."""
    text = f"Required '{need.permission}' permission for '{need.told}'"
    return ApiError("PERMISSION_DENIED", text, reason="forbidden")


def _of_secrets(method: str, need: Need, request: Any) -> ApiError:
    """As in hundreds of public issues."""
    text = (
        f"Permission '{need.permission}' denied for resource '{need.told}' (or it may not exist)."
    )
    return _denied(text, need, "secretmanager.googleapis.com", need.told)


_WORDS: Mapping[str, Callable[[str, Need, Any], ApiError]] = {
    "google.cloud.compute.": _of_compute,
    "google.cloud.tpu.": _on_platform("tpu.googleapis.com"),
    "google.cloud.location.": _on_platform("tpu.googleapis.com"),
    "google.longrunning.": _on_platform("tpu.googleapis.com"),
    "google.cloud.resourcemanager.": _of_manager,
    "google.cloudresourcemanager.": _of_older_manager,
    "google.iam.admin.": _of_identity,
    "google.api.serviceusage.": _of_services,
    "google.cloud.secretmanager.": _of_secrets,
}


def _not_to_act_as(service: str, need: Need, email: str) -> ApiError:
    if service.startswith("google.cloud.compute."):
        return refusal({"kind": "error", "like": "actas"}, {"account": need.told, "caller": email})
    # What other APIs on the platform say, as Cloud Run in many public issues; Cloud TPU's own words
    # were not found.
    text = (
        f"Permission '{need.permission}' denied on service account {need.told} (or it may not "
        "exist)."
    )
    return _denied(text, need, "iam.googleapis.com", f"projects/-/serviceAccounts/{need.told}")


def out_of_scope(method: str) -> ApiError:
    """google/api/error_reason.proto; Cloud Storage's words: googleapis/google-cloud-cpp#7334."""
    if method.startswith("storage."):
        text = "Provided scope(s) are not authorized"
        return ApiError("PERMISSION_DENIED", text, reason="forbidden")
    service = method.rpartition("/")[0]
    host = next((host for start, host in _HOSTS.items() if service.startswith(start)), "")
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


_HOSTS = {
    "google.cloud.compute.": "compute.googleapis.com",
    "google.cloud.tpu.": "tpu.googleapis.com",
    "google.cloud.location.": "tpu.googleapis.com",
    "google.longrunning.": "tpu.googleapis.com",
    "google.cloud.resourcemanager.": "cloudresourcemanager.googleapis.com",
    "google.cloudresourcemanager.": "cloudresourcemanager.googleapis.com",
    "google.iam.admin.": "iam.googleapis.com",
    "google.api.serviceusage.": "serviceusage.googleapis.com",
    "google.cloud.billing.": "cloudbilling.googleapis.com",
    "google.cloud.secretmanager.": "secretmanager.googleapis.com",
}
