"""IAM Admin, as the core knows it."""

from __future__ import annotations

from tpuctl.emulator.iam.admin.access import ACCESS
from tpuctl.emulator.iam.admin.rest_rules import IAM
from tpuctl.emulator.wire.google_api import GoogleApi, Surface

__all__ = ["API"]

_PACES = {
    # From creation until policies accept them, 0 where nobody wants to watch that: a new role was
    # refused for 12 to 18 seconds in one public report, a new account's time is a guess.
    "identity.roles.visible": (0.0, 15.0),
    "identity.accounts.visible": (0.0, 5.0),
}

API = GoogleApi(
    access=ACCESS,
    services={"identity": "tpuctl.emulator.iam.admin.service:IdentityService"},
    surfaces=(
        Surface(
            "google.iam.admin.v1.IAM",
            "google.cloud.iam_admin_v1.services.iam",
            "IAM",
            "identity",
            r"/v1/(?:projects/[^/]+/(?:serviceAccounts|roles)"
            r"|organizations/[^/]+/roles|roles|permissions)",
            family="both",
            api=ACCESS.host,
            rest_rules=IAM,
        ),
    ),
    paces=_PACES,
)
