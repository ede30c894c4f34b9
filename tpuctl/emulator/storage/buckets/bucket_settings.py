"""Validation and defaults of bucket settings.

Rules marked "measured" were measured against Cloud Storage by kmoneil/zig-gcp in September 2026
(its docs/storage/buckets.md and src/storage/fake_buckets.zig).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from tpuctl import catalog
from tpuctl.emulator.state.errors import ApiError, invalid
from tpuctl.emulator.state.merge_patch import merge
from tpuctl.emulator.state.projects import now_text, time_text
from tpuctl.emulator.storage.buckets.bucket_schema import ENFORCEMENTS

Bucket = dict[str, Any]

_LABEL_KEY = re.compile(r"[^\W\dA-Z][\w-]{0,62}")
_LABEL_VALUE = re.compile(r"[\w-]{0,63}")
_MULTI_REGIONS = ("US", "EU", "ASIA")
# cloud.google.com/storage/docs/locations#predefined
_DUAL_REGIONS = ("ASIA1", "EUR4", "EUR5", "EUR7", "EUR8", "NAM4")
_UNIFORM_LOCK = timedelta(days=90)  # until uniform access can no longer be switched off
STORAGE_CLASSES = (
    "STANDARD",
    "NEARLINE",
    "COLDLINE",
    "ARCHIVE",
    "MULTI_REGIONAL",
    "REGIONAL",
    "DURABLE_REDUCED_AVAILABILITY",
)
FULLY_RESTRICTED = "FullyRestricted"
_RESTRICTION_MODES = ("NotRestricted", FULLY_RESTRICTED)
_DAY = 24 * 3600
_DEFAULT_SOFT_DELETE = 7 * _DAY  # also the minimum unless it is off
_MAX_SOFT_DELETE = 90 * _DAY
_MAX_RETENTION = 3_155_760_000  # measured: 100 years


def retention_seconds(bucket: Bucket) -> int:
    """The bucket's retention period; 0 without a retention policy."""
    return int((bucket.get("retentionPolicy") or {}).get("retentionPeriod", 0))


def soft_delete_seconds(bucket: Bucket) -> int:
    """How long deleted objects can be restored; 0 if soft delete is off."""
    return int(bucket["softDeletePolicy"]["retentionDurationSeconds"])


def is_hierarchical(bucket: Bucket) -> bool:
    """Whether it has folders."""
    return bool((bucket.get("hierarchicalNamespace") or {}).get("enabled"))


def apply_changes(before: Bucket, changes: dict[str, Any], *, base: Bucket) -> Bucket:
    """`base` with changes applied: the whole bucket for a patch, unchangeable fields for an
    update."""
    changed = dict(base)
    merge(changed, changes)
    if changes.get("labels") == {}:  # measured: removes all labels, as null does
        changed.pop("labels", None)
    if changes.get("cors") == []:  # so Node's client expects it
        del changed["cors"]
    period = (changes.get("retentionPolicy") or {}).get("retentionPeriod")
    if isinstance(changes.get("retentionPolicy"), dict):
        # Measured: an object without a period changes nothing; locks and times are output-only.
        policy = dict(before.get("retentionPolicy") or {})
        if period is not None:
            policy["retentionPeriod"] = period
        changed["retentionPolicy"] = policy
        if not policy:
            del changed["retentionPolicy"]
    fill_defaults(changed, before)
    _check_lock(before, changed)
    return changed


def _check_lock(before: Bucket, changed: Bucket) -> None:
    """Measured: the period of a locked policy can only be increased."""
    if not (before.get("retentionPolicy") or {}).get("isLocked"):
        return
    name = before["name"]
    if retention_seconds(changed) == 0:
        raise ApiError(
            "PERMISSION_DENIED",
            f"Bucket '{name}' has a locked Retention Policy which cannot be removed.",
            reason="retentionPolicyNotMet",
        )
    if retention_seconds(changed) < retention_seconds(before):
        raise ApiError(
            "PERMISSION_DENIED",
            f"Cannot reduce retention duration of a locked Retention Policy for bucket '{name}'.",
            reason="forbidden",
        )


def fill_defaults(bucket: Bucket, before: Bucket | None = None) -> None:
    """Validate the writable fields and fill in defaults."""
    location = str(bucket.get("location") or "US").upper()
    is_region = re.fullmatch(r"[A-Z]+-[A-Z]+\d+", location) is not None
    regions = {catalog.region_of(zone).upper() for zone in catalog.zones()}
    if not is_region and location not in regions.union(_MULTI_REGIONS, _DUAL_REGIONS):
        raise invalid("The specified location constraint is not valid.")
    bucket["location"] = location
    is_dual = location in _DUAL_REGIONS or "customPlacementConfig" in bucket
    is_multi = location in _MULTI_REGIONS
    bucket["locationType"] = "dual-region" if is_dual else "multi-region" if is_multi else "region"
    if bucket["locationType"] != "region":
        bucket.setdefault("rpo", "DEFAULT")
    if not (bucket.get("lifecycle") or {}).get("rule"):
        bucket.pop("lifecycle", None)
    bucket["storageClass"] = bucket.get("storageClass") or "STANDARD"
    if bucket["storageClass"] not in STORAGE_CLASSES:
        raise invalid(f"Invalid argument: storageClass {bucket['storageClass']}")
    _check_labels(bucket.get("labels", {}))
    _fill_access(bucket, (before or {}).get("iamConfiguration") or {})
    _fill_autoclass(bucket, (before or {}).get("autoclass") or {})
    _fill_soft_delete(bucket, (before or {}).get("softDeletePolicy"))
    _fill_retention(bucket, (before or {}).get("retentionPolicy"))
    _fill_enforcement(bucket, (before or {}).get("encryption") or {})
    mode = (bucket.get("ipFilter") or {}).get("mode", "Disabled")
    if mode != "Disabled":  # "Enabled" is refused by name: all requests come from this computer
        raise invalid(f"Invalid argument: ipFilter.mode {mode}")
    versioning = bucket.get("versioning", {})
    if not isinstance(versioning, dict) or not isinstance(versioning.get("enabled", False), bool):
        raise invalid("Invalid argument: versioning")
    _check_hierarchy(bucket, before)


def _check_hierarchy(bucket: Bucket, before: Bucket | None) -> None:
    """cloud.google.com/storage/docs/hns-overview; the wordings are guesses."""
    if before is not None and is_hierarchical(before) != is_hierarchical(bucket):
        raise invalid("Hierarchical namespace can only be enabled when the bucket is created.")
    if not is_hierarchical(bucket):
        return
    if not bucket["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"]:
        raise invalid("Hierarchical namespace requires uniform bucket-level access.")
    if bucket.get("versioning", {}).get("enabled"):
        raise invalid("Object versioning is not supported in buckets with hierarchical namespace.")


def _fill_enforcement(bucket: Bucket, before: dict[str, Any]) -> None:
    """Which encryption new objects may have: cloud.google.com/storage/docs/encryption/enforce."""
    encryption = bucket.get("encryption")
    if not encryption:
        bucket.pop("encryption", None)
        return
    for kind in ENFORCEMENTS:
        config = encryption.get(kind)
        if not config:
            encryption.pop(kind, None)
            continue
        mode, former = config.get("restrictionMode"), before.get(kind) or {}
        if mode not in _RESTRICTION_MODES:
            raise invalid(f"Invalid argument: {kind}.restrictionMode {mode}")
        config.pop("effectiveTime", None)
        if mode == FULLY_RESTRICTED:  # so Google's client expects it
            is_same = former.get("restrictionMode") == mode
            config["effectiveTime"] = former["effectiveTime"] if is_same else now_text()
    if all(
        encryption.get(kind, {}).get("restrictionMode") == FULLY_RESTRICTED for kind in ENFORCEMENTS
    ):
        raise invalid("At least one encryption type must be allowed on the bucket.")


def _check_labels(labels: Any) -> None:
    if not isinstance(labels, dict):
        raise invalid("Invalid argument: labels")
    for key, value in labels.items():
        text = str(value)
        if (
            not _LABEL_KEY.fullmatch(key)
            or not _LABEL_VALUE.fullmatch(text)
            or text.lower() != text
        ):
            raise invalid(f"Invalid label: '{key}': '{value}'")


def _fill_autoclass(bucket: Bucket, before: dict[str, Any]) -> None:
    """It manages the classes of objects, which all begin with STANDARD."""
    autoclass = bucket.get("autoclass")
    if not autoclass:
        return
    now = now_text()
    is_toggled = before.get("enabled", False) != autoclass.get("enabled", False)
    autoclass["toggleTime"] = now if is_toggled or not before else before["toggleTime"]
    if not autoclass.get("enabled"):
        return
    bucket["storageClass"] = "STANDARD"
    terminal = autoclass.setdefault("terminalStorageClass", "NEARLINE")
    is_same = before.get("terminalStorageClass") == terminal
    autoclass["terminalStorageClassUpdateTime"] = (
        before["terminalStorageClassUpdateTime"] if is_same else now
    )


def _fill_access(bucket: Bucket, before: dict[str, Any]) -> None:
    access = bucket.setdefault("iamConfiguration", {})
    if not isinstance(access, dict):
        raise invalid("Invalid argument: iamConfiguration")
    older = access.get("bucketPolicyOnly") or {}
    uniform = access.get("uniformBucketLevelAccess") or older or {"enabled": False}
    if not isinstance(uniform, dict):
        raise invalid("Invalid argument: uniformBucketLevelAccess")
    is_enabled = bool(uniform.get("enabled"))
    locked = (before.get("uniformBucketLevelAccess") or {}).get("lockedTime")
    if is_enabled and not locked:
        locked = time_text(datetime.now(UTC) + _UNIFORM_LOCK)
    access["uniformBucketLevelAccess"] = access["bucketPolicyOnly"] = {
        "enabled": is_enabled,
        **({"lockedTime": locked} if is_enabled else {}),
    }
    prevention = access.setdefault("publicAccessPrevention", "inherited")
    if prevention not in ("inherited", "enforced", "unspecified"):
        raise invalid(f"Invalid argument: publicAccessPrevention {prevention}")


def _fill_soft_delete(bucket: Bucket, before: Any) -> None:
    """Off (0), or 7 to 90 days (cloud.google.com/storage/docs/soft-delete)."""
    policy = bucket.setdefault("softDeletePolicy", {})
    if not isinstance(policy, dict):
        raise invalid("Invalid argument: softDeletePolicy")
    seconds = _seconds(
        policy.get("retentionDurationSeconds", _DEFAULT_SOFT_DELETE), "softDeletePolicy"
    )
    if seconds and not _DEFAULT_SOFT_DELETE <= seconds <= _MAX_SOFT_DELETE:
        raise invalid("Soft delete policy retention duration must be 0 or between 7 and 90 days.")
    policy["retentionDurationSeconds"] = str(seconds)
    former = before if isinstance(before, dict) else {}
    is_same = former.get("retentionDurationSeconds") == policy["retentionDurationSeconds"]
    policy["effectiveTime"] = former["effectiveTime"] if is_same else now_text()


def _fill_retention(bucket: Bucket, before: Any) -> None:
    policy = bucket.get("retentionPolicy")
    if policy is None:
        return
    if not isinstance(policy, dict):
        raise invalid("Invalid argument: retentionPolicy")
    seconds = _seconds(policy.get("retentionPeriod", 0), "retentionPolicy")
    if not 1 <= seconds <= _MAX_RETENTION:
        raise invalid("Invalid argument: retentionPeriod must be between 1 and 3155760000.")
    former = before if isinstance(before, dict) else {}
    bucket["retentionPolicy"] = {
        "retentionPeriod": str(seconds),
        # Measured: it does not change with the period.
        "effectiveTime": former.get("effectiveTime") or now_text(),
        **({"isLocked": True} if former.get("isLocked") else {}),
    }


def _seconds(value: Any, field: str) -> int:
    text = str(value)
    if isinstance(value, bool) or not text.isascii() or not text.isdigit() or len(text) > 15:
        raise invalid(f"Invalid argument: {field}")
    return int(text)
