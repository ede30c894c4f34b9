"""Text input: JSON that can be written as UTF-8 again, and spelling suggestions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tpuctl.spelling import nearest


def did_you_mean(value: str, choices: Iterable[str]) -> str:
    """` Did you mean …?` to append to an error; empty if no choice is similar."""
    close = nearest(value, choices, 1)
    return f" Did you mean {close[0]}?" if close else ""


def parse_json(data: bytes) -> Any:
    """The value; an empty body is an empty object. ValueError if it is not JSON in UTF-8.

    Python's parser accepts lone surrogates, which are not valid text: they would fail at the next
    serialization, far from the request.
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
