"""What of a bucket a caller may set, and of which type it is, as Google's description has it.

Fields that nobody knows are passed over, as the older APIs do; what is of another type is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpuctl.emulator.state.errors import invalid

__all__ = ["shaped"]

# storage.v1's discovery document, schema Bucket, without what only the service itself sets. A list
# has what its items are, a mapping from "*" has any keys; `object` is looked at elsewhere.
_CONDITION = {
    **dict.fromkeys(("age", "daysSinceCustomTime", "daysSinceNoncurrentTime"), int),
    "numNewerVersions": int,
    **dict.fromkeys(("createdBefore", "customTimeBefore", "noncurrentTimeBefore"), str),
    "isLive": bool,
    "matchesPattern": str,
    "matchesPrefix": [str],
    "matchesStorageClass": [str],
    "matchesSuffix": [str],
}
_ACTION = {"storageClass": str, "type": str}
_SHAPE: Mapping[str, Any] = {
    "autoclass": {"enabled": bool, "terminalStorageClass": str},
    "billing": {"requesterPays": bool},
    "cors": [{"maxAgeSeconds": int, "method": [str], "origin": [str], "responseHeader": [str]}],
    "customPlacementConfig": {"dataLocations": [str]},
    "defaultEventBasedHold": bool,
    "encryption": {"defaultKmsKeyName": str},
    "hierarchicalNamespace": {"enabled": bool},
    "iamConfiguration": {
        "bucketPolicyOnly": {"enabled": bool},
        "publicAccessPrevention": str,
        "uniformBucketLevelAccess": {"enabled": bool},
    },
    "labels": {"*": str},
    "lifecycle": {"rule": [{"action": _ACTION, "condition": _CONDITION}]},
    "location": str,
    "logging": {"logBucket": str, "logObjectPrefix": str},
    "name": str,
    "retentionPolicy": {"retentionPeriod": object},
    "rpo": str,
    "softDeletePolicy": {"retentionDurationSeconds": object},
    "storageClass": str,
    "versioning": {"enabled": bool},
    "website": {"mainPageSuffix": str, "notFoundPage": str},
}


def shaped(resource: dict[str, Any]) -> dict[str, Any]:
    """The resource with the known fields alone; ApiError for what is not of its type."""
    found: dict[str, Any] = _take(resource, _SHAPE, "")
    return found


def _take(value: Any, shape: Any, place: str) -> Any:
    if value is None or shape is object:
        return value
    if isinstance(shape, Mapping):
        if not isinstance(value, dict):
            raise invalid(f"Invalid argument: {place}")
        kinds = {key: shape.get(key, shape.get("*")) for key in value}
        prefix = f"{place}." if place else ""
        return {
            key: _take(value[key], kind, prefix + key)
            for key, kind in kinds.items()
            if kind is not None
        }
    if isinstance(shape, list):
        if not isinstance(value, list) or None in value:
            raise invalid(f"Invalid argument: {place}")
        return [_take(item, shape[0], place) for item in value]
    if shape is int and isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if not isinstance(value, shape) or (shape is int and not _is_int32(value)):
        raise invalid(f"Invalid argument: {place}")
    return value


def _is_int32(value: Any) -> bool:
    return not isinstance(value, bool) and -(2**31) <= value < 2**31
