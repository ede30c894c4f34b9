"""Organization Policy, as the core knows it."""

from __future__ import annotations

from tpuctl.emulator.org_policy.access import ACCESS
from tpuctl.emulator.wire.google_api import GoogleApi, Surface

__all__ = ["API"]

API = GoogleApi(
    access=ACCESS,
    services={"org_policies": "tpuctl.emulator.org_policy.service:OrgPolicyService"},
    surfaces=(
        Surface(
            "google.cloud.orgpolicy.v2.OrgPolicy",
            "",
            "OrgPolicy",
            "org_policies",
            r"/v2/(?:projects|folders|organizations)/[^/]+/(?:policies|constraints)",
            api=ACCESS.host,
            definition="tpuctl.emulator.org_policy.messages",
        ),
    ),
)
