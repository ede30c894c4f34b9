"""The declaration of Cloud Storage, which answers HTTP itself, and of Storage Control."""

from __future__ import annotations

from typing import Any

from tpuctl.emulator.faults.google_messages import storage_denied
from tpuctl.emulator.iam.api_access import ApiAccess
from tpuctl.emulator.iam.required_permissions import Need
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.wire.google_api import GoogleApi, Surface

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

_NO_PATHS = "(?!)"  # Google describes Storage Control for gRPC only


def _refuse(method: str, need: Need, email: str, request: Any) -> ApiError:
    return storage_denied(email, need.permission)


_ACCESS = ApiAccess(
    package=__package__,
    host="storage.googleapis.com",
    methods=("storage.", "google.storage.control."),
    refuse=_refuse,
    scopes=("devstorage.full_control", "devstorage.read_write"),
    read_scopes=("devstorage.read_only", "cloud-platform.read-only"),
    method_scopes={
        **dict.fromkeys(_FULL_CONTROL, ("devstorage.full_control",)),
        **{f"storage.projects.hmacKeys.{verb}": _READ_KEYS for verb in ("get", "list")},
    },
)

API = GoogleApi(
    access=_ACCESS,
    services={
        "storage": "tpuctl.emulator.storage.service:StorageService",
        "storage_control": "tpuctl.emulator.storage.control:StorageControlService",
    },
    surfaces=(
        Surface(
            "google.storage.control.v2.StorageControl",
            "google.cloud.storage_control_v2.services.storage_control",
            "storage_control",
            _NO_PATHS,
        ),
    ),
    documents={"storage.v1": "Cloud Storage v1"},
    paces={
        "storage_control.renameFolder": (0.0, 0.0),  # one step of the bucket's metadata
        "storage_control.deleteFolderRecursive": (0.0, 0.0),  # takes the time of its objects
    },
)
