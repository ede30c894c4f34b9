"""Lists of Compute Engine: filters, pages, and lists over all scopes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpuctl.emulator.compute.core.messages import LINK, message_of
from tpuctl.emulator.state.errors import ApiError, invalid
from tpuctl.emulator.state.locations import regions, zones
from tpuctl.emulator.wire import filters
from tpuctl.emulator.wire.paging import page

Row = Mapping[str, Any]
Show = Callable[[Sequence[str]], Sequence[Row]]
_MAX_RESULTS = 500


def listed(request: Any, message: str, kind: str, rows: Sequence[Row], scope: str) -> Any:
    """The list message: one page of the rows that match the request's filter."""
    rows_by_name = {str(row["name"]): row for row in rows}
    return listed_names(
        request,
        message,
        kind,
        list(rows_by_name),
        scope,
        lambda names: _rows_of(rows_by_name, names),
    )


def listed_names(
    request: Any, message: str, kind: str, names: Sequence[str], scope: str, show: Show
) -> Any:
    """Like `listed`, but `show` makes the rows from names: only those of the page if there is
    neither a filter nor an order."""
    selected, token = _select_page(request, names, show)
    answer: dict[str, Any] = {
        "kind": kind,
        "id": scope,
        "items": [dict(row) for _, row in selected],
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
    """The aggregated list message, from sorted full names; `show` makes the rows.

    Every page contains every scope, with a warning for those without results: those of the
    collection, or all.
    """
    if request.include_all_scopes:
        scopes = ("global", *map("regions/{}".format, regions()), *map("zones/{}".format, zones()))
    selected, token = _select_page(request, names, show)
    items: dict[str, dict[str, list[Row]]] = {}
    for name, row in selected:
        items.setdefault(_scope_of(name), {field: []})[field].append(dict(row))
    answer: dict[str, Any] = {"kind": kind, "id": base, "items": items, "selfLink": LINK + base}
    if token:
        answer["nextPageToken"] = token
    response = message_of(message, answer)
    for scope in scopes:
        if scope not in items:
            _warn_no_results(response.items[scope].warning, field, scope)
    return response


def _select_page(
    request: Any, names: Sequence[str], show: Show
) -> tuple[list[tuple[str, Row]], str]:
    """One page of the rows that match the filter, in the requested order."""
    if request.order_by not in ("", "name", "creationTimestamp desc"):
        raise _invalid("orderBy", request.order_by)
    rows_by_name: dict[str, Row] = {}
    if request.filter.strip() or request.order_by == "creationTimestamp desc":
        rows = zip(names, show(names), strict=True)
        rows_by_name = {name: row for name, row in rows if matches(row, request.filter)}
        names = list(rows_by_name)
    if request.order_by == "creationTimestamp desc":

        def time_of(name: str) -> str:
            row = rows_by_name[name]
            return str(row.get("creationTimestamp") or row.get("insertTime", ""))

        names = sorted(names, key=time_of, reverse=True)
    page_names, token = page(
        names, request.max_results, request.page_token, str, max_size=_MAX_RESULTS
    )
    rows_of = _rows_of(rows_by_name, page_names) if rows_by_name else show(page_names)
    return list(zip(page_names, rows_of, strict=True)), token


def _rows_of(rows_by_name: Mapping[str, Row], names: Sequence[str]) -> Sequence[Row]:
    return [rows_by_name[name] for name in names]


def _scope_of(name: str) -> str:
    """`zones/Z` of a full name, or `global`."""
    parts = name.split("/")
    return "global" if parts[2] == "global" else "/".join(parts[2:4])


def _warn_no_results(warning: Any, field: str, scope: str) -> None:
    """Set field by field: there are a hundred scopes, and JSON would take ten times as long.

    Wording of subnetworks: GoogleCloudPlatform/k8s-config-connector, mockcompute's testdata
    computenetworks/subnetmode-auto; of others: a response in googleapis/google-cloud-cpp's tests.
    """
    warning.code = "NO_RESULTS_ON_PAGE"
    warning.message = (
        f"No results for the scope '{scope}'."
        if field == "subnetworks"
        else f"There are no results for scope '{scope}' on this page."
    )
    warning.data.add(key="scope", value=scope)


def matches(row: Row, text: str) -> bool:
    """Whether the row matches the filter; an invalid filter is an error."""
    try:
        return filters.matches(row, text)
    except filters.InvalidFilter as error:
        raise _invalid("filter", str(error)) from error


def _invalid(field: str, value: str) -> ApiError:
    text = f"Invalid value for field '{field}': '{value}'. Invalid list {field} expression."
    return invalid(text)
