"""JSON merge patches (RFC 7396)."""

from __future__ import annotations

from typing import Any


def merge(target: dict[str, Any], changes: dict[str, Any]) -> None:
    """Apply a patch: null removes, objects merge, the rest replaces."""
    for key, value in changes.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            inner = target.get(key)
            merged = dict(inner) if isinstance(inner, dict) else {}
            merge(merged, value)
            target[key] = merged
        else:
            target[key] = value
