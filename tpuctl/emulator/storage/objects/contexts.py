"""Contexts of objects: custom keys and values, by which lists can be filtered.

cloud.google.com/storage/docs/object-contexts. Of several sources of a composition the last one's
value of a key counts, which is a guess.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tpuctl.emulator.state.errors import invalid, unimplemented
from tpuctl.emulator.state.projects import now_text

Contexts = dict[str, Any]  # {"custom": {KEY: {"value", "createTime", "updateTime"}}}

_MAX_COUNT = 50
_MAX_BYTES = 256  # of a key or a value
_TEXT = re.compile(r"[^\W_][^'\"\\/]*")
_FILTER = re.compile(r'(-|NOT +)?contexts\."([^"]+)"(?::\*|="([^"]*)")')


def changed_contexts(before: Contexts | None, change: Any) -> Contexts | None:
    """An object's contexts after a change, a JSON merge patch of them; None for none."""
    custom = change.get("custom") if isinstance(change, dict) else None
    if not isinstance(change, dict | None) or not isinstance(custom, dict | None):
        raise invalid("Invalid argument: contexts")
    if change is None or ("custom" in change and custom is None):
        return None
    values = dict((before or {}).get("custom") or {})
    now = now_text()
    for key, payload in (custom or {}).items():
        if not isinstance(payload, dict | None):
            raise invalid("Invalid argument: contexts")
        value = (payload or {}).get("value")
        if value is None:
            values.pop(key, None)
            continue
        if not _is_text(key) or not _is_text(value):
            raise invalid(f"Invalid object context: '{key}': '{value}'")
        former = values.get(key)
        if former is None or former["value"] != value:
            created = former["createTime"] if former else now
            values[key] = {"value": value, "createTime": created, "updateTime": now}
    if len(values) > _MAX_COUNT:
        raise invalid(f"An object can have at most {_MAX_COUNT} contexts, not {len(values)}.")
    return {"custom": values} if values else None


def merged_contexts(contexts: Iterable[Contexts | None]) -> Contexts | None:
    """The contexts of an object that is made of several."""
    custom = {key: value for each in contexts if each for key, value in each["custom"].items()}
    return {"custom": custom} if custom else None


def context_filter(text: str) -> Callable[[Mapping[str, Any]], bool]:
    """What decides whether an object, by its body, is listed with a filter such as
    `contexts."key"="value"`, `contexts."key":*`, or one of them after a minus sign."""
    if not text:
        return lambda body: True
    match = _FILTER.fullmatch(text.strip())
    if match is None:
        raise unimplemented(f"storage.objects.list with the filter {text}")
    is_negated, key, expected = bool(match[1]), match[2], match[3]

    def is_listed(body: Mapping[str, Any]) -> bool:
        payload = ((body.get("contexts") or {}).get("custom") or {}).get(key)
        holds = payload is not None and expected in (None, payload["value"])
        return holds != is_negated

    return is_listed


def _is_text(value: Any) -> bool:
    return (
        isinstance(value, str)
        and _TEXT.fullmatch(value) is not None
        and len(value.encode()) <= _MAX_BYTES
    )
