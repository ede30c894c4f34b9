"""Lists of Compute Engine: filters, pages, and lists over all scopes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpuctl.emulator.compute.messages import LINK, message_of
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.wire import filters
from tpuctl.emulator.wire.paging import page

__all__ = ["aggregated", "listed", "listed_names", "matches"]

Row = Mapping[str, Any]
Show = Callable[[Sequence[str]], Sequence[Row]]
_MOST = 500


def listed(request: Any, message: str, kind: str, rows: Sequence[Row], scope: str) -> Any:
    """The list message: the rows that the request's filter takes, one page of them."""
    known = {str(row["name"]): row for row in rows}
    return listed_names(request, message, kind, list(known), scope, lambda names: _of(known, names))


def listed_names(
    request: Any, message: str, kind: str, names: Sequence[str], scope: str, show: Show
) -> Any:
    """Like `listed`, of names of which `show` makes rows: of those of the page alone where neither
    filter nor order need more."""
    picked, token = _pick(request, names, show)
    answer: dict[str, Any] = {
        "kind": kind,
        "id": scope,
        "items": [dict(row) for _, row in picked],
        "selfLink": LINK + scope,
    }
    if token:
        answer["nextPageToken"] = token
    return message_of(message, answer)


def aggregated(
    request: Any,
    message: str,
    kind: str,
    names: Sequence[str],
    scopes: Sequence[str],
    field: str,
    base: str,
    show: Show,
) -> Any:
    """The list message over scopes: of full names, in order, of which `show` makes rows.

    Every scope is there on every page, with a warning where the page has nothing of it.
    """
    picked, token = _pick(request, names, show)
    items: dict[str, dict[str, list[Row]]] = {}
    for name, row in picked:
        items.setdefault(_scope_of(name), {field: []})[field].append(dict(row))
    answer: dict[str, Any] = {"kind": kind, "id": base, "items": items, "selfLink": LINK + base}
    if token:
        answer["nextPageToken"] = token
    made = message_of(message, answer)
    for scope in scopes:
        if scope not in items:
            _warn_of_nothing(made.items[scope].warning, scope)
    return made


def _pick(request: Any, names: Sequence[str], show: Show) -> tuple[list[tuple[str, Row]], str]:
    """One page of what the request's filter takes, in the order that it asks for."""
    if request.order_by not in ("", "name", "creationTimestamp desc"):
        raise _invalid("orderBy", request.order_by)
    known: dict[str, Row] = {}
    if request.filter.strip() or request.order_by == "creationTimestamp desc":
        rows = zip(names, show(names), strict=True)
        known = {name: row for name, row in rows if matches(row, request.filter)}
        names = list(known)
    if request.order_by == "creationTimestamp desc":
        names = sorted(names, key=lambda name: _time_of(known[name]), reverse=True)
    picked, token = page(names, request.max_results, request.page_token, str, max_size=_MOST)
    rows_of = _of(known, picked) if known else show(picked)
    return list(zip(picked, rows_of, strict=True)), token


def _time_of(row: Row) -> str:
    return str(row.get("creationTimestamp") or row.get("insertTime", ""))


def _of(known: Mapping[str, Row], names: Sequence[str]) -> Sequence[Row]:
    return [known[name] for name in names]


def _scope_of(name: str) -> str:
    """`zones/Z` of a full name, or `global`."""
    parts = name.split("/")
    return "global" if parts[2] == "global" else "/".join(parts[2:4])


def _warn_of_nothing(warning: Any, scope: str) -> None:
    """Field by field: there are a hundred scopes, and JSON would take ten times as long."""
    warning.code = "NO_RESULTS_ON_PAGE"
    warning.message = f"There are no results for scope '{scope}' on this page."
    warning.data.add(key="scope", value=scope)


def matches(row: Row, text: str) -> bool:
    """Whether a filter takes the row; refused where it is none."""
    try:
        return filters.matches(row, text)
    except filters.InvalidFilter as error:
        raise _invalid("filter", str(error)) from error


def _invalid(field: str, value: str) -> ApiError:
    text = f"Invalid value for field '{field}': '{value}'. Invalid list {field} expression."
    return ApiError("INVALID_ARGUMENT", text, reason="invalid")
