"""The writable fields of a bucket and their types, from Google's API description.

Unknown fields are ignored, as by Google's older APIs; values of the wrong type are rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any

from tpuctl.emulator.state.errors import invalid

_INT64 = "int64"
# storage.v1's discovery document, schema Bucket, without output-only fields. A list contains the
# schema of its items, a mapping with "*" has any keys; `object` is validated elsewhere.
_CONDITION = {
    **dict.fromkeys(("age", "daysSinceCustomTime", "daysSinceNoncurrentTime"), int),
    "numNewerVersions": int,
    **dict.fromkeys(("sizeAboveBytes", "sizeBelowBytes"), _INT64),
    **dict.fromkeys(("createdBefore", "customTimeBefore", "noncurrentTimeBefore"), date),
    "isLive": bool,
    "matchesPattern": str,
    "matchesPrefix": [str],
    "matchesStorageClass": [str],
    "matchesSuffix": [str],
}
_ACTION = {"storageClass": str, "type": str}
# Which encryption new objects may have, by the names of its fields.
ENFORCEMENTS = tuple(
    f"{kind}EncryptionEnforcementConfig"
    for kind in ("customerManaged", "customerSupplied", "googleManaged")
)
_SCHEMA: Mapping[str, Any] = {
    "autoclass": {"enabled": bool, "terminalStorageClass": str},
    "billing": {"requesterPays": bool},
    "cors": [{"maxAgeSeconds": int, "method": [str], "origin": [str], "responseHeader": [str]}],
    "customPlacementConfig": {"dataLocations": [str]},
    "defaultEventBasedHold": bool,
    "encryption": {
        "defaultKmsKeyName": str,
        **{kind: {"restrictionMode": str} for kind in ENFORCEMENTS},
    },
    "hierarchicalNamespace": {"enabled": bool},
    "iamConfiguration": {
        "bucketPolicyOnly": {"enabled": bool},
        "publicAccessPrevention": str,
        "uniformBucketLevelAccess": {"enabled": bool},
    },
    "ipFilter": {
        "allowAllServiceAgentAccess": bool,
        "allowCrossOrgVpcs": bool,
        "mode": str,
        "publicNetworkSource": {"allowedIpCidrRanges": [str]},
        "vpcNetworkSources": [{"allowedIpCidrRanges": [str], "network": str}],
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

# Those that only the service sets.
OUTPUT_ONLY = (
    *("etag", "generation", "hardDeleteTime", "id", "kind", "locationType"),
    *("metageneration", "objectRetention", "owner", "projectNumber", "satisfiesPZI"),
    *("satisfiesPZS", "selfLink", "softDeleteTime", "timeCreated", "updated"),
)
# All of these but what is refused when it is on, the filter: clients send both kinds back with an
# update.
BUCKET_FIELDS: Mapping[str, Any] = {
    **dict.fromkeys(OUTPUT_ONLY),
    **_SCHEMA,
    "autoclass": {
        **_SCHEMA["autoclass"],
        **dict.fromkeys(("terminalStorageClassUpdateTime", "toggleTime")),
    },
    "encryption": {
        **_SCHEMA["encryption"],
        **dict.fromkeys(ENFORCEMENTS, dict.fromkeys(("effectiveTime", "restrictionMode"))),
    },
    "iamConfiguration": dict.fromkeys(_SCHEMA["iamConfiguration"]),
    "retentionPolicy": dict.fromkeys(("effectiveTime", "isLocked", "retentionPeriod")),
    "ipFilter": {key: kind for key, kind in _SCHEMA["ipFilter"].items() if key != "mode"},
    "softDeletePolicy": dict.fromkeys(("effectiveTime", "retentionDurationSeconds")),
}


def parse_bucket(resource: dict[str, Any]) -> dict[str, Any]:
    """The resource with only the known fields; ApiError for a value of the wrong type."""
    bucket: dict[str, Any] = _validate(resource, _SCHEMA, "")
    return bucket


def _validate(value: Any, schema: Any, path: str) -> Any:
    if value is None or schema is object:
        return value
    if isinstance(schema, Mapping):
        if not isinstance(value, dict):
            raise invalid(f"Invalid argument: {path}")
        kinds = {key: schema.get(key, schema.get("*")) for key in value}
        prefix = f"{path}." if path else ""
        return {
            key: _validate(value[key], kind, prefix + key)
            for key, kind in kinds.items()
            if kind is not None
        }
    if schema in (date, _INT64):
        text = str(value)
        is_number = text.isascii() and text.isdigit() and int(text) < 2**63
        if not (is_number if schema is _INT64 else _is_date(text)):
            raise invalid(f"Invalid argument: {path}")
        return text
    if isinstance(schema, list):
        if not isinstance(value, list) or None in value:
            raise invalid(f"Invalid argument: {path}")
        return [_validate(item, schema[0], path) for item in value]
    if schema is int and isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if not isinstance(value, schema) or (schema is int and not _is_int32(value)):
        raise invalid(f"Invalid argument: {path}")
    return value


def _is_date(text: str) -> bool:
    try:
        return len(text) == 10 and bool(date.fromisoformat(text))
    except ValueError:
        return False


def _is_int32(value: Any) -> bool:
    return not isinstance(value, bool) and -(2**31) <= value < 2**31
