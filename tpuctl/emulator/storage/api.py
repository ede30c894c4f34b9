"""The declaration of Cloud Storage: it answers HTTP itself, so it has no surfaces."""

from __future__ import annotations

from tpuctl.emulator.iam.api_access import ApiAccess
from tpuctl.emulator.wire.google_api import GoogleApi

# Reading and changing policies and metadata requires the widest scope.
_FULL_CONTROL = (
    *(
        f"storage.{kind}.{verb}"
        for kind in (
            *("bucketAccessControls", "defaultObjectAccessControls", "objectAccessControls"),
        )
        for verb in ("delete", "get", "insert", "list", "patch", "update")
    ),
    "storage.buckets.getIamPolicy",
    "storage.buckets.patch",
    "storage.buckets.setIamPolicy",
    "storage.buckets.update",
    "storage.objects.patch",
    "storage.objects.restore",
    "storage.objects.update",
    "storage.projects.hmacKeys.create",
    "storage.projects.hmacKeys.update",
)
_READ_KEYS = ("devstorage.full_control", "devstorage.read_only", "cloud-platform.read-only")


_ACCESS = ApiAccess(
    package=__package__,
    host="storage.googleapis.com",
    methods=("storage.",),
    scopes=("devstorage.full_control", "devstorage.read_write"),
    read_scopes=("devstorage.read_only", "cloud-platform.read-only"),
    method_scopes={
        **dict.fromkeys(_FULL_CONTROL, ("devstorage.full_control",)),
        **{f"storage.projects.hmacKeys.{verb}": _READ_KEYS for verb in ("get", "list")},
    },
)

API = GoogleApi(
    access=_ACCESS,
    services={"storage": "tpuctl.emulator.storage.service:StorageService"},
    documents={"storage.v1": "Cloud Storage v1"},
)
