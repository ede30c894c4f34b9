"""What comes from outside: JSON that can be written down again as UTF-8, names mistyped."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tpuctl.spelling import nearest

__all__ = ["did_you_mean", "parse_json"]


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """` Did you mean …?`, to stand behind a refusal; empty where nothing known is much like it."""
    close = nearest(given, known, 1)
    return f" Did you mean {close[0]}?" if close else ""


def parse_json(data: bytes) -> Any:
    """The value; an empty body is an empty object. ValueError for what is no JSON in UTF-8.

    Half a surrogate pair passes Python's parser but is no text: it would fail at the next
    serialization, in a place that knows nothing of the request.
    """
    if not data.strip():
        return {}
    try:
        value = json.loads(data.decode("utf-8"))  # from bytes it would take UTF-16 as well
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if b"\\ud" in data.lower():
        json.dumps(value, ensure_ascii=False).encode()  # UnicodeEncodeError is a ValueError
    return value
