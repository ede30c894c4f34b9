"""JSON from outside: only what can be written down again as UTF-8."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["parse_json"]


def parse_json(data: bytes) -> Any:
    """The value; an empty body is an empty object. ValueError for anything that is no JSON.

    Half a surrogate pair passes Python's parser but is no text: it would fail at the next
    serialization, in a place that knows nothing of the request.
    """
    if not data.strip():
        return {}
    try:
        value = json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if b"\\ud" in data.lower():
        json.dumps(value, ensure_ascii=False).encode()  # UnicodeEncodeError is a ValueError
    return value
