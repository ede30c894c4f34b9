"""Who may call Organization Policy."""

from __future__ import annotations

from tpuctl.emulator.iam.api_access import ApiAccess

__all__ = ["ACCESS"]


ACCESS = ApiAccess(
    package=__package__,
    host="orgpolicy.googleapis.com",
    methods=("google.cloud.orgpolicy.",),
)
