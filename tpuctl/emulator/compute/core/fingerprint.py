"""Fingerprints: what Compute Engine compares before it replaces labels, tags or metadata."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

_EMPTY = "42WmSpB8rSM="  # Google's fingerprint of no labels and of no tags


def fingerprint(value: Any) -> str:
    """A content hash in base64, like Google's fingerprints."""
    if not value:
        return _EMPTY
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
    return base64.urlsafe_b64encode(digest[:8]).decode()
