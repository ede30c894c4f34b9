"""Registration of Service Usage: surfaces, permissions and paces."""

from __future__ import annotations

import re
from typing import Any

from tpuctl.emulator.iam.api_access import ApiAccess
from tpuctl.emulator.iam.permission_errors import platform_denied
from tpuctl.emulator.iam.required_permissions import Need
from tpuctl.emulator.service_usage.quota import METHODS
from tpuctl.emulator.state.errors import ApiError, error_detail, error_info
from tpuctl.emulator.wire.google_api import GoogleApi, Surface

_HOST = "serviceusage.googleapis.com"


def _refuse(method: str, need: Need, email: str, request: Any) -> ApiError:
    """Wording: su-kaka/gcli2api#283 and aquasecurity/cloudsploit#1606; other verbs by analogy."""
    kind, _, verb = need.permission.rpartition(".")
    match = re.search(r"/services/([^/:]+)", need.resource_name)
    apis = list(getattr(request, "service_ids", ())) or ([match[1]] if match else [])
    if kind != "serviceusage.services":
        return platform_denied(_HOST)(method, need, email, request)
    if verb == "list":
        text = f"Permission denied to list services for consumer container [{need.resource_name}]"
    else:
        text = f"Permission denied to {verb} service [{', '.join(apis)}]"
    violation = {"type": "googleapis.com", "subject": "110002"}
    details = [
        error_detail("PreconditionFailure", violations=[violation]),
        error_info("AUTH_PERMISSION_DENIED", _HOST),
    ]
    return ApiError("PERMISSION_DENIED", text, details=details)


_ACCESS = ApiAccess(
    package=__package__,
    host=_HOST,
    methods=("google.api.serviceusage.",),
    refuse=_refuse,
    scopes=("service.management",),
    read_scopes=("cloud-platform.read-only",),
)

_PACES = {
    "services.enable": (0.6, 150.0),  # "API enabling 2-3 min" in public reports
    "services.disable": (0.3, 20.0),  # guess
}

API = GoogleApi(
    access=_ACCESS,
    services={
        "services": "tpuctl.emulator.service_usage.services:ServicesService",
        "quota": "tpuctl.emulator.service_usage.quota:QuotaService",
    },
    documents={
        "serviceusage.v1": "Service Usage v1",
        "serviceusage.v1beta1": "Service Usage v1beta1",
    },
    surfaces=(
        Surface(
            "google.api.serviceusage.v1.ServiceUsage",
            "google.cloud.service_usage_v1.services.service_usage",
            "services",
            r"/v1/(?:operations|[a-z]+/[^/]+/services)",
        ),
    ),
    json_services={"/v1beta1/": "quota"},  # no client has messages for it
    other_methods=METHODS,
    paces=_PACES,
)
