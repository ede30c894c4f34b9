"""Retention policies and holds, which protect objects from deletion and replacement.

Behavior and messages were measured against Cloud Storage by kmoneil/zig-gcp in September 2026 (its
src/storage/retention.zig). Retention of single objects is not emulated.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.storage.bucket_settings import Bucket, retention_seconds

__all__ = ["RELEASED", "require_deletable", "retained_until"]

# In an object's body: when its event-based hold was released, which starts the retention period.
RELEASED = "_released"


def retained_until(body: dict[str, Any], bucket: Bucket) -> datetime | None:
    """When the object's retention ends. None without a policy, or while a hold defers it."""
    seconds = retention_seconds(bucket)
    if not seconds or body.get("eventBasedHold"):
        return None
    since = datetime.fromisoformat(body.get(RELEASED) or body["timeCreated"])
    # Even the longest period does not exceed the range of datetime for objects of this century.
    return datetime.fromtimestamp(since.timestamp() + seconds, UTC)


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
