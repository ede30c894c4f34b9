"""Lists of Compute Engine: filters and pages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tpuctl.emulator.paging import page
from tpuctl.emulator.status import ApiError

__all__ = ["listed"]

_TERM = re.compile(
    r"\(?\s*([A-Za-z][\w.]*)\s*(!=|=|:|\s(?:eq|ne)\s)\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s()]*))\s*\)?"
)


def listed(
    request: Any, message: str, kind: str, rows: Sequence[Mapping[str, Any]], scope: str
) -> Any:
    """The list message: the rows that the request's filter takes, one page of them."""
    from tpuctl.emulator.services.compute import LINK, message_of

    chosen = [row for row in rows if _matches(row, request.filter)]
    if request.order_by == "creationTimestamp desc":
        chosen.sort(key=lambda row: str(row.get("creationTimestamp", "")), reverse=True)
    elif request.order_by not in ("", "name"):
        raise _invalid("orderBy", request.order_by)
    picked, token = page(
        chosen, request.max_results, request.page_token, lambda row: str(row["name"]), most=500
    )
    answer: dict[str, Any] = {
        "kind": kind,
        "id": scope,
        "items": [dict(row) for row in picked],
        "selfLink": LINK + scope,
    }
    if token:
        answer["nextPageToken"] = token
    return message_of(message, answer)


def _matches(row: Mapping[str, Any], text: str) -> bool:
    """Terms that all must hold: `name=x`, `name eq pattern`, `network:y`, joined by AND."""
    rest = text.strip()
    while rest:
        found = _TERM.match(rest)
        if found is None:
            raise _invalid("filter", text)
        rest = re.sub(r"^\s*(?:AND\b)?\s*", "", rest[found.end() :])
        if not _holds(row, found[1], found[2].strip(), found[3] or found[4] or found[5] or ""):
            return False
    return True


def _holds(row: Mapping[str, Any], field: str, operator: str, wanted: str) -> bool:
    value: Any = row
    for part in field.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    actual = "" if value is None else str(value)
    if isinstance(value, bool):
        actual = str(value).lower()
    if operator in ("eq", "ne"):
        try:
            is_equal = re.fullmatch(wanted, actual) is not None
        except re.error as error:
            raise _invalid("filter", wanted) from error
        return is_equal == (operator == "eq")
    if operator == ":":
        return actual != "" if wanted == "*" else wanted.strip("*") in actual
    return (actual == wanted) == (operator == "=")


def _invalid(field: str, value: str) -> ApiError:
    text = f"Invalid value for field '{field}': '{value}'. Invalid list {field} expression."
    return ApiError("INVALID_ARGUMENT", text, reason="invalid")
