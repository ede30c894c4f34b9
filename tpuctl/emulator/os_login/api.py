"""Registration of OS Login: its surface and permissions."""

from __future__ import annotations

from tpuctl.emulator.iam.api_access import ApiAccess
from tpuctl.emulator.wire.google_api import GoogleApi, Surface

_ACCESS = ApiAccess(
    package=__package__,
    host="oslogin.googleapis.com",
    methods=("google.cloud.oslogin.",),
    scopes=("compute",),
    read_scopes=("cloud-platform.read-only", "compute.readonly"),
)

API = GoogleApi(
    access=_ACCESS,
    services={"os_login": "tpuctl.emulator.os_login.service:OsLoginApi"},
    documents={"oslogin.v1": "OS Login v1"},
    surfaces=(
        Surface(
            "google.cloud.oslogin.v1.OsLoginService",
            "",
            "os_login",
            r"/v1/users/",
            refused=("system_id",),
            definition="tpuctl.emulator.os_login.messages",
        ),
    ),
)
