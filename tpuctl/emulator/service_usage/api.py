"""Service Usage, as the core knows it."""

from __future__ import annotations

from tpuctl.emulator.service_usage.access import ACCESS
from tpuctl.emulator.service_usage.quota import METHODS
from tpuctl.emulator.wire.google_api import GoogleApi, Surface

__all__ = ["API"]

_PACES = {
    "services.enable": (0.6, 150.0),  # "API enabling 2-3 min" in public reports
    "services.disable": (0.3, 20.0),  # guess
}

API = GoogleApi(
    access=ACCESS,
    services={
        "services": "tpuctl.emulator.service_usage.services:ServicesService",
        "quota": "tpuctl.emulator.service_usage.quota:QuotaService",
    },
    surfaces=(
        Surface(
            "google.api.serviceusage.v1.ServiceUsage",
            "google.cloud.service_usage_v1.services.service_usage",
            "ServiceUsage",
            "services",
            r"/v1/(?:operations|[a-z]+/[^/]+/services)",
        ),
    ),
    json_services={"/v1beta1/": "quota"},  # of which no client has a table
    other_methods=METHODS,
    paces=_PACES,
)
