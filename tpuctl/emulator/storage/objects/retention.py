"""Retention and holds, which protect objects from deletion and replacement; and custom times.

Behavior and messages were measured against Cloud Storage by kmoneil/zig-gcp in September 2026 (its
src/storage/retention.zig and fake_multipart.zig).
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from tpuctl.emulator.state.errors import ApiError, invalid
from tpuctl.emulator.storage.buckets.bucket_settings import Bucket, retention_seconds

# In an object's body: when its event-based hold was released, which starts the retention period.
RELEASED = "_released"


def retained_until(body: dict[str, Any], bucket: Bucket) -> datetime | None:
    """When the object's retention ends, its own or by the bucket's policy. None without either;
    a hold defers the policy's."""
    text = (body.get("retention") or {}).get("retainUntilTime")
    until = datetime.fromisoformat(text) if text else None
    seconds = retention_seconds(bucket)
    if not seconds or body.get("eventBasedHold"):
        return until
    since = datetime.fromisoformat(body.get(RELEASED) or body["timeCreated"])
    # Even the longest period does not exceed the range of datetime for objects of this century.
    policy_end = datetime.fromtimestamp(since.timestamp() + seconds, UTC)
    return policy_end if until is None else max(until, policy_end)


_LOCKED = (
    "The locked object retention cannot be removed. Its retention mode cannot be changed and its "
    "retention period cannot be shortened."
)
_UNLOCKED = (
    "The unlocked object retention cannot be removed and its retention period cannot be shortened "
    "without overriding unlocked retention intent and permission."
)


def changed_retention(
    before: dict[str, str] | None, change: Any, bucket: Bucket, *, may_override: bool
) -> dict[str, str] | None:
    """An object's own retention after a change; None is none.

    Raises ApiError for a change that its mode forbids, or that needs `overrideUnlockedRetention`.
    """
    if change == {}:
        return before
    # The Python client also sends the time back at which it would end.
    is_removed = change is None or all(
        name in change and change[name] is None for name in ("mode", "retainUntilTime")
    )
    after = None if is_removed else _retention(change, bucket)
    if before is None:
        return after
    until = datetime.fromisoformat
    is_shorter = after and until(after["retainUntilTime"]) < until(before["retainUntilTime"])
    if before["mode"] == "Locked":
        if after is None or is_shorter or after["mode"] != "Locked":
            raise ApiError("PERMISSION_DENIED", _LOCKED, reason="forbidden")
    elif (after is None or is_shorter or after["mode"] == "Locked") and not may_override:
        raise ApiError("PERMISSION_DENIED", _UNLOCKED, reason="forbidden")
    return after


def _retention(change: Any, bucket: Bucket) -> dict[str, str]:
    if "objectRetention" not in bucket:
        raise invalid("Object retention is not enabled on the bucket.")
    mode, text = change.get("mode"), change.get("retainUntilTime")
    for value, name in ((mode, "retention mode"), (text, "retain until time")):
        if not value:
            rule = "Both mode and retain until time are required."
            raise invalid(f"Missing {name}. {rule}")
    if mode not in ("Locked", "Unlocked"):
        raise invalid(f"Invalid value for: {mode} is not a valid value")
    until = _parse_time(text, "retainUntilTime")
    if until.timestamp() <= time.time():
        raise invalid("Retain until time cannot be in the past.")
    return {"mode": mode, "retainUntilTime": _text(until)}


def check_retention(body: dict[str, Any]) -> None:
    if body.get("retention") and body.get("eventBasedHold"):
        raise invalid("Retention and event based holds cannot be configured together.")


def _parse_time(text: Any, field: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None and "T" in text.upper():
            return moment.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        pass
    raise invalid(
        "Parse Error: Invalid value for type.googleapis.com/google.protobuf.Timestamp field: "
        f"'Field '{field}', Illegal timestamp format; timestamps must end with 'Z' or have a valid "
        "timezone offset.'."
    )


def _text(moment: datetime) -> str:
    """With as many digits as are needed, of none, three or six."""
    timespec = "auto" if moment.microsecond % 1000 else "milliseconds"
    return moment.isoformat(timespec=timespec).replace("+00:00", "Z").replace(".000Z", "Z")


def check_custom_time(before: str | None, after: str | None) -> str | None:
    """The new custom time in Google's form. Raises ApiError if it is removed or set back, which
    cloud.google.com/storage/docs/metadata#custom-time forbids."""
    if after is None:
        if before is not None:
            raise invalid("Custom time cannot be removed.")
        return None
    moment = _parse_time(after, "customTime")
    if before is not None and moment < datetime.fromisoformat(before):
        raise invalid(
            f"Custom time cannot be decreased. Previously: {before}. Attempting to set: {after}."
        )
    return _text(moment)


def require_deletable(path: str, body: dict[str, Any], bucket: Bucket) -> None:
    """Raise ApiError if an object must not be deleted or replaced; `path` is bucket/name."""
    for field, words in (("temporaryHold", "Temporary"), ("eventBasedHold", "Event-Based")):
        if body.get(field):
            raise ApiError(
                "PERMISSION_DENIED",
                f"Object '{path}' is under active {words} hold and cannot be deleted, "
                "overwritten or archived until hold is removed.",
                reason="forbidden",
            )
    until = retained_until(body, bucket)
    if until is not None and until.timestamp() > time.time():
        raise ApiError(
            "PERMISSION_DENIED",
            f"Object '{path}' is subject to bucket's retention policy or object retention and "
            f"cannot be deleted or overwritten until {until.isoformat()}",
            reason="retentionPolicyNotMet",
        )
