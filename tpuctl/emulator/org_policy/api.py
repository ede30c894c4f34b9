"""Registration of Organization Policy: surfaces, permissions and paces."""

from __future__ import annotations

from tpuctl.emulator.iam.api_access import ApiAccess
from tpuctl.emulator.wire.google_api import GoogleApi, Surface

_ACCESS = ApiAccess(
    package=__package__,
    host="orgpolicy.googleapis.com",
    methods=("google.cloud.orgpolicy.",),
)

API = GoogleApi(
    access=_ACCESS,
    services={"org_policies": "tpuctl.emulator.org_policy.service:OrgPolicyService"},
    documents={"orgpolicy.v2": "Organization Policy v2"},
    surfaces=(
        Surface(
            "google.cloud.orgpolicy.v2.OrgPolicy",
            "google.cloud.orgpolicy_v2.services.org_policy",
            "org_policies",
            r"/v2/(?:projects|folders|organizations)/[^/]+/(?:policies|constraints)",
            api=_ACCESS.host,
        ),
    ),
)
